#!/bin/sh
# Query three tables: sh examples/ask.sh [qkv]
# The third table is California housing if QKV_DATA names the folder of public data, or else the 32,909 named
# characters of the Unicode table in Python.
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
if [ -n "${QKV_DATA:-}" ] && [ -f "$QKV_DATA/tables/california_housing.csv.gz" ]; then
    run ask "$QKV_DATA/tables/california_housing.csv.gz" --key longitude,latitude --value median_house_value \
        -122.43,37.77 --explain
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python=$(dirname "$qkv")/python
    [ -x "$python" ] || python=python3
    "$python" characters.py > "$folder/characters.tsv"
    run ask "$folder/characters.tsv" --key name --value character 'grek small leter lamda' --explain
fi
