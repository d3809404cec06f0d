#!/bin/sh
# Makes the user that a service runs as, and the folders that it owns: make_user.sh UID FOLDER...
# Volumes take owner and mode of the folder that they are mounted on. Verifier and worker have to be the same user:
# hidden states are files that only their writer's uid may read.
set -eu

uid="$1"
shift
groupadd --gid "$uid" eyrie
useradd --uid "$uid" --gid "$uid" --no-create-home --home-dir /tmp --shell /usr/sbin/nologin eyrie
for folder in "$@"; do
    mkdir -p "$folder"
    chown "$uid:$uid" "$folder"
    chmod 750 "$folder"
done
rm -rf /build
