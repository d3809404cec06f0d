#!/bin/sh
# Libraries of the system that vLLM needs, from Debian, unless the base image has them: libraries.sh cpu|gpu
#   cpu: libnuma, which vLLM's CPU build is linked against
#   gpu: a C compiler and Python's headers, with which Triton builds the starters of its kernels
set -eu

wanted=""
if [ "$1" = cpu ]; then
    ldconfig -p | grep -q 'libnuma\.so\.1' || wanted="libnuma1"
else
    command -v cc >/dev/null || wanted="gcc libc6-dev"
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || wanted="$wanted python3-dev"
fi
if [ -n "$wanted" ]; then
    apt-get update
    # shellcheck disable=SC2086 # a list of packages
    apt-get install -y --no-install-recommends $wanted
    rm -rf /var/lib/apt/lists/*
fi
