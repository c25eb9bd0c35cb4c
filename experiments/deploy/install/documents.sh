#!/usr/bin/env bash
# Writes the man pages and the bash completion of the programs in BIN below PREFIX/share, from their --help-all:
# documents.sh BIN PREFIX
set -euo pipefail
bin=$1 man=$2/share/man/man1 completions=$2/share/bash-completion/completions
awk_file=$(dirname "${BASH_SOURCE[0]}")/documents.awk
export COLUMNS=110
mkdir -p "$man" "$completions"
version=$("$bin/psring" --version | cut -d ' ' -f 2)
mapfile -t verbs < <("$bin/psring" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z]\+\) .*/\1/p')

# help_of PROGRAM [VERB]. A command without rarely used flags has only --help.
help_of() {
  "$bin/$1" "${@:2}" --help-all 2>/dev/null || "$bin/$1" "${@:2}" --help
}
flags_of() {
  help_of "$@" | awk -v flags=1 -f "$awk_file" | sort -u | tr '\n' ' '
}

"$bin/psring" --help | awk -v page=psring -v version="$version" -f "$awk_file" >"$man/psring.1"
for verb in "${verbs[@]}"; do
  help_of psring "$verb" | awk -v page="psring-$verb" -v version="$version" -f "$awk_file" >"$man/psring-$verb.1"
done
for program in trainer ps_server; do
  help_of "$program" | awk -v page="$program" -v version="$version" -f "$awk_file" >"$man/$program.1"
done

{
  echo '_psring() {'
  echo '  local flags word=${COMP_WORDS[COMP_CWORD]}'
  echo '  case ${COMP_WORDS[1]} in'
  for verb in "${verbs[@]}"; do echo "    $verb) flags='$(flags_of psring "$verb")' ;;"; done
  echo "    *) flags='${verbs[*]} help --help --version' ;;"
  echo '  esac'
  echo '  if ((COMP_CWORD == 1)); then'
  echo "    flags='${verbs[*]} help --help --version'"
  echo '  elif [[ ${COMP_WORDS[1]} == help ]]; then'
  echo "    flags='${verbs[*]}'"
  echo '  elif [[ $word != -* ]]; then'
  echo '    return  # a value: a file, for example'
  echo '  fi'
  echo '  COMPREPLY=($(compgen -W "$flags" -- "$word"))'
  echo '}'
  echo 'complete -o default -F _psring psring'
} >"$completions/psring"
for program in trainer ps_server; do
  echo "complete -o default -W '$(flags_of "$program")' $program" >"$completions/$program"
done
