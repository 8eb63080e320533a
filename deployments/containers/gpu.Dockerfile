# The same for a machine with an NVIDIA GPU. The driver's libraries come from the host, by the NVIDIA container toolkit
# (docker run --gpus all); CUDA itself is not needed in the image.
# Build from the repository root, after worker.Dockerfile: docker build -f deployments/containers/gpu.Dockerfile .
ARG WORKER=retune-worker
FROM ${WORKER}

# NVIDIA's Python packages; the user of the worker's image may not install.
USER root
RUN pip install "/opt/retune[cuda]"
USER retune

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

CMD ["prefect", "worker", "start", "--pool", "gpu-pool"]
