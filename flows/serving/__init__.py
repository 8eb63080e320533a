"""An HTTP server for compiled networks that speaks KServe's Open Inference Protocol, version 2."""
