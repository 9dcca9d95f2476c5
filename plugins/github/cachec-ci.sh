#!/usr/bin/env bash
# What the action runs. All that it is told comes in variables (IN_*, and GitHub's own), never in the text of a command.
#
#   plan   says where the archive lies, under which key it is kept, and whether this run may save it; sets the store
#          and the record of its use for the steps that follow
#   run    restores, warms, bounds and saves; says whether there is something new to save
#
# Each variable has a default, so that other systems call it too: `run` with IN_ARCHIVE, and IN_SAVES=true where the
# code is trusted. See docs/howto/warm-and-ci.md.
set -euo pipefail

: "${IN_COMMAND=all}" "${IN_TARGETS=}" "${IN_NAME=default}" "${IN_MAX_SIZE=2GiB}" "${IN_JOBS=}" "${IN_SHARD=}"
: "${IN_CHANGED_SINCE=}" "${IN_CHECK=false}" "${IN_READ_ONLY=false}" "${IN_SAVES=false}"
: "${IN_REMOTE=}"
folder=${RUNNER_TEMP:+$RUNNER_TEMP/cachec}
base=${XDG_CACHE_HOME:-}
[[ $base == /* || ${HOME:-} != /* ]] || base=$HOME/.cache
folder=${folder:-$base/cachec-ci}
[[ $folder == /* && ($base == /* || -n ${RUNNER_TEMP:-}) ]] || {
  echo "::error::cachec: set RUNNER_TEMP, XDG_CACHE_HOME or HOME to an absolute path; found '${HOME:-}' for HOME"
  exit 2
}
: "${IN_ARCHIVE=$folder/warm.cachec}"

tell() { # FILE: what stdin says goes there, or to stdout where it has no name
  if [[ -n $1 ]]; then cat >>"$1"; else cat; fi
}

fail() {
  echo "::error::cachec: $1"
  exit 2
}

one_of() { # NAME VALUE CHOICE...
  local name=$1 value=$2 choice
  shift 2
  for choice in "$@"; do
    [[ $value == "$choice" ]] && return
  done
  fail "input $name is '$value'; it is one of: $*"
}

plan() {
  one_of command "$IN_COMMAND" all restore save
  one_of read-only "$IN_READ_ONLY" true false
  [[ $IN_NAME =~ ^[A-Za-z0-9._-]{1,64}$ ]] || fail "input name is '$IN_NAME'; it has 1 to 64 of A-Z a-z 0-9 . _ -"
  local saves=false remote=$IN_REMOTE
  mkdir -p "$folder"
  # Only what is already in the repository may fill the archive. A pull request may hold anybody's code, and so may what
  # its events start (pull_request_target, workflow_run, issue_comment): these hit, and leave nothing behind.
  case ${GITHUB_EVENT_NAME:-} in push | schedule | workflow_dispatch | release | merge_group) saves=true ;; esac
  if [[ -n $remote ]]; then
    [[ $remote =~ ^[!-~]+://[!-~]+$ ]] || fail "input remote is no URL"
    [[ ! $remote =~ [?\&]mode= ]] || fail "input remote says a mode, which is the event's to say"
    [[ $saves == true && $IN_READ_ONLY == false ]] || remote+=$([[ $remote == *\?* ]] && echo '&' || echo '?')mode=read
  fi
  [[ $IN_READ_ONLY == false && $IN_COMMAND != restore ]] || saves=false
  local prefix=cachec-2-${RUNNER_OS:-$(uname -s)}-${RUNNER_ARCH:-$(uname -m)}-$IN_NAME-
  {
    echo "archive=$folder/warm.cachec"
    echo "prefix=$prefix"
    echo "key=$prefix${GITHUB_RUN_ID:-0}-${GITHUB_RUN_ATTEMPT:-1}"
    echo "saves=$saves"
  } | tell "${GITHUB_OUTPUT:-}"
  {
    [[ -n ${CACHEC_DIR:-} ]] || echo "CACHEC_DIR=$folder/store"
    [[ -n ${CACHEC_STATS_FILE:-} ]] || echo "CACHEC_STATS_FILE=$folder/used.jsonl"
    [[ -z $remote ]] || echo "CACHEC_REMOTE=$remote"
  } | tell "${GITHUB_ENV:-}"
}

run() {
  one_of check "$IN_CHECK" true false
  local words=(warm) before='' status=0
  [[ $IN_COMMAND == save ]] || words+=(--restore "$IN_ARCHIVE")
  if [[ $IN_COMMAND == restore ]]; then
    cachec "${words[@]}" --list >/dev/null
    echo "save=false" | tell "${GITHUB_OUTPUT:-}"
    return
  fi
  if [[ $IN_SAVES == true ]]; then
    words+=(--save "$IN_ARCHIVE" --save-limit "$IN_MAX_SIZE")
    [[ ! -e ${CACHEC_STATS_FILE:-} ]] || words+=(--used "$CACHEC_STATS_FILE")
  fi
  [[ $IN_CHECK == false ]] || words+=(--check)
  [[ -z $IN_JOBS ]] || words+=(--jobs "$IN_JOBS")
  [[ -z $IN_SHARD ]] || words+=(--shard "$IN_SHARD")
  [[ -z $IN_CHANGED_SINCE ]] || words+=(--changed-since "$IN_CHANGED_SINCE")
  local targets=()
  read -r -d '' -a targets <<<"$IN_TARGETS" || true
  [[ ! -e $IN_ARCHIVE ]] || before=$(sha256sum <"$IN_ARCHIVE")
  [[ -z ${GITHUB_STEP_SUMMARY:-} ]] || words+=(--summary "$GITHUB_STEP_SUMMARY")
  mkdir -p "$(dirname "$IN_ARCHIVE")"
  cachec "${words[@]}" -- "${targets[@]}" || status=$?
  # This machine is gone soon, and with it what waits to be sent. A remote that is down fails no job.
  if [[ -n ${CACHEC_REMOTE:-} && $CACHEC_REMOTE != *mode=read* ]]; then
    cachec push || echo "::warning::cachec: not everything is at the remote"
  fi
  # The same entries give the same archive, byte by byte: it is kept under its old key then.
  if [[ $IN_SAVES == true && -e $IN_ARCHIVE && $before != $(sha256sum <"$IN_ARCHIVE") ]]; then
    echo "save=true" | tell "${GITHUB_OUTPUT:-}"
  else
    echo "save=false" | tell "${GITHUB_OUTPUT:-}"
  fi
  return "$status"
}

case ${1:-} in
  plan | run) "$1" ;;
  *) fail "usage: $0 plan|run" ;;
esac
