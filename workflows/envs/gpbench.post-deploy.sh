#!/usr/bin/env bash
set -euo pipefail
pip install -r requirements.lock
pip install --no-deps --no-build-isolation -e .
