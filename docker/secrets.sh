#!/bin/sh
# Makes the secret files of compose.yaml that are not there yet: docker/secrets.sh [FOLDER]; `make secrets` calls it.
# The folder is its owner's alone. The files in it can be read by all, since containers see them under users of their
# own, and compose hands files on as they are.
set -eu

folder="${1:-secrets}"
umask 077
mkdir -p "$folder"
for name in redis-password eyrie-api-key grafana-password; do
    if [ ! -s "$folder/$name" ]; then
        head -c 32 /dev/urandom | base64 | tr -d '\n' >"$folder/$name"
        chmod 444 "$folder/$name"
        echo "made $folder/$name"
    fi
done
