# A machine of a fleet that has a processor: it runs flows (prefect worker), builds programs or times them (retune worker).
# Build from the repository root: docker build -f deployments/containers/worker.Dockerfile -t retune-worker .
FROM python:3.12-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DO_NOT_TRACK=1 \
    PREFECT_HOME=/home/retune/.prefect \
    RETUNE_ROOT=/opt/retune \
    RETUNE_HOME=/var/lib/retune

# Kernels run their parallel loops on GCC's OpenMP runtime.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/retune
COPY pyproject.toml README.md LICENSE ./
COPY retune ./retune
COPY compiler ./compiler
COPY storage ./storage
COPY tasks ./tasks
COPY flows ./flows
COPY deployments ./deployments
RUN pip install ".[report]" \
    && useradd --create-home --uid 10001 retune \
    && install -d -o retune -g retune /var/lib/retune

USER retune
VOLUME /var/lib/retune

CMD ["retune", "worker", "--build"]
