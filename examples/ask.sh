#!/bin/sh
# Query three tables: sh examples/ask.sh [qkv]
# The third table is that of the named characters of Unicode, which comes with Python.
set -eu
qkv=${1:-qkv}
case $qkv in */*) qkv=$(cd "$(dirname "$qkv")" && pwd)/$(basename "$qkv") ;; esac
cd "$(dirname "$0")"

run() {
    printf '\n$ qkv'
    for word in "$@"; do
        case $word in *[!A-Za-z0-9_./,:=-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    "$qkv" "$@"
}

run ask people.csv --key name --value income 'Jon Smiht' --top 4
run ask gpa.csv --key gpa --value starting_salary 3.5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=$(dirname "$qkv")/python
[ -x "$python" ] || python=python3
"$python" characters.py > "$folder/characters.tsv"
run ask "$folder/characters.tsv" --key name --value character 'grek small leter lamda' --explain
printf '\nA sentence instead of a table (docs/start/look.md): qkv look --text "When he saw his owner, the dog was happy"\n'
