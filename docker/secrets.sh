#!/bin/sh
# Makes the secret files of compose.yaml that are not there yet: docker/secrets.sh [FOLDER]; `make secrets` calls it.
# Without FOLDER they go where compose looks for them: EYRIE_SECRETS, of the environment or else of .env, or secrets/.
# The folder is its owner's alone. The files in it can be read by all, since containers see them under users of their
# own, and compose hands files on as they are.
set -eu

# The last line of .env that sets it, as compose reads it: without quotes, or what follows a # behind a space.
of_env_file() {
    [ -f .env ] || return 0
    sed -n -e 's/^[[:space:]]*//' -e 's/^export[[:space:]]\{1,\}//' -e 's/^EYRIE_SECRETS[[:space:]]*=[[:space:]]*//p' .env |
        tail -n 1 |
        sed -e 's/^"\([^"]*\)".*/\1/' -e t -e "s/^'\([^']*\)'.*/\1/" -e t -e 's/[[:space:]]#.*//' -e 's/[[:space:]]*$//'
}

folder="${1:-${EYRIE_SECRETS-$(of_env_file)}}"
folder="${folder:-secrets}"
case "$folder" in
*\$*)
    echo "error: EYRIE_SECRETS is $folder: write it without variables" >&2
    exit 1
    ;;
esac
umask 077
mkdir -p "$folder"
for name in redis-password eyrie-api-key grafana-password; do
    if [ ! -s "$folder/$name" ]; then
        head -c 32 /dev/urandom | base64 | tr -d '\n' >"$folder/$name"
        chmod 444 "$folder/$name"
        echo "made $folder/$name"
    fi
done
