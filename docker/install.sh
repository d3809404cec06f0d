#!/bin/sh
# Installs what an image needs below /opt/eyrie, compiled to bytecode: containers have a read-only root.
#
#     install.sh [--torch cpu|gpu] LOCK      a lock into the environment /opt/eyrie/venv; on CPUs torch's build first
#     install.sh --target FOLDER LOCK        what a lock adds to that environment, into a folder of its own
#     install.sh --application FOLDER        Eyrie itself, from its sources, into /opt/eyrie/app
#
# Where packages come from: PIP_INDEX_URL and PIP_EXTRA_INDEX_URL (build arguments), /etc/pip.conf (a build secret), and
# the wheels in docker/wheels.
set -eu

VENV=/opt/eyrie/venv
TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Tests, and the model files of transformers that no run touches; as in tools/install.py.
UNCOMPILED='/tests?/|/torch/testing/|/networkx/algorithms/|/transformers/models/(?!__|auto/|deepseek|kimi|llama|qwen)'

pip_install() {
    python3 -m pip --python "$VENV/bin/python3" --disable-pip-version-check --no-input install \
        --no-deps --no-compile --progress-bar off --root-user-action ignore "$@"
}

locked() {
    pip_install --require-hashes --find-links /wheels "$@"
}

compile() {
    "$VENV/bin/python3" -m compileall -q -j 0 -x "$UNCOMPILED" "$1" || true # some files are for other Pythons
}

case "$1" in
--application)
    pip_install --no-index --no-build-isolation --target /opt/eyrie/app "$2"
    rm -rf /opt/eyrie/app/bin
    chmod -R a+rX /opt/eyrie/app # whatever umask the sources were checked out with
    compile /opt/eyrie/app
    ;;
--target)
    locked --target "$2" -r "$3"
    compile "$2"
    ;;
--torch)
    if [ "$2" = cpu ]; then
        locked -r /build/torch-cpu.txt || locked --extra-index-url "$TORCH_INDEX" -r /build/torch-cpu.txt
    fi
    locked -r "$3"
    compile "$VENV/lib"
    ;;
*)
    locked -r "$1"
    compile "$VENV/lib"
    ;;
esac
