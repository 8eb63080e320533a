# The Prefect server of a fleet. It runs no code of ours; flows and workers reach it under port 4200.
# Build from the repository root: docker build -f deployments/containers/server.Dockerfile -t retune-server .
FROM python:3.12-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    PREFECT_HOME=/var/lib/prefect

# The same bounds as in pyproject.toml; the driver for PostgreSQL comes with Prefect.
RUN pip install "prefect>=3.6,<4" "fastapi>=0.139,<0.151" \
    && useradd --create-home --uid 10001 retune \
    && install -d -o retune -g retune /var/lib/prefect

USER retune
VOLUME /var/lib/prefect
EXPOSE 4200

HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4200/api/health', timeout=4)"]

CMD ["prefect", "server", "start", "--host", "0.0.0.0", "--port", "4200"]
