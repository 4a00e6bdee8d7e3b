#!/usr/bin/env bash
# A folder may include itself and those below it: base < metadata < tiering < gpu < fs < tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
order=(base metadata tiering gpu fs tools)
bad=0
for i in "${!order[@]}"; do
  for later in "${order[@]:i+1}"; do
    if grep -rnE "#include \"$later/" "${order[i]}" 2>/dev/null; then
      echo "${order[i]}/ includes $later/, against the direction of the layers" >&2
      bad=1
    fi
  done
done
# libsluice includes only base and gpu; the public headers include nothing of ours.
if grep -rnE '#include "(metadata|tiering|fs|tools)/' client; then
  echo "client/ includes what only the daemon and the tools have" >&2
  bad=1
fi
if grep -rnE '#include "client/' base metadata tiering gpu fs | grep -v 'client/include/sluice/ioctl\.h"'; then
  echo "the library is included from below it" >&2
  bad=1
fi
# Inside fs/, the core includes neither FUSE nor the services that use it.
if grep -rnE '#include "fs/(fuse|gpu|control|daemon)' fs/core; then
  echo "fs/core/ includes a folder that depends on it" >&2
  bad=1
fi
# Inside the core and tiering/, a room includes itself and those before it in this list.
rooms() { # FOLDER ROOM...
  local folder=$1 room after
  shift
  for room in "$@"; do
    after=$(sed "s/.*\b$room *//; s/ /|/g" <<<"$*")
    if [[ $after ]] && grep -rnE "#include \"$folder/($after)/" "$folder/$room"; then
      echo "$folder/$room/ includes a room above it" >&2
      bad=1
    fi
  done
  if grep -rnE "#include \"$folder/[a-z_]+\.hpp" "${@/#/$folder/}"; then
    echo "a room of $folder/ includes what puts them together" >&2
    bad=1
  fi
}
rooms fs/core inodes tree move budget names deletion files
rooms tiering choose pool origin heat move
# The keeper must not fail, so it includes little.
if grep -rnE '#include "' fs/keeper | grep -vE '#include "(base|fs/keeper)/'; then
  echo "fs/keeper/ includes more than base/ and itself" >&2
  bad=1
fi
# Inside tools/: common < web < cli, and common < lab. The programs share nothing else.
refuse() { # FOLDER INCLUDE-REGEX [EXCEPT-REGEX]
  if grep -rnE "#include \"($2)" "$1" | grep -vE "${3:-^$}"; then
    echo "$1/ includes $2, against the direction of the layers" >&2
    bad=1
  fi
}
refuse tools/common 'tools/(web|cli|lab)/'
refuse tools/web 'tools/(cli|lab)/'
refuse tools/cli 'tools/lab/'
refuse tools/lab 'tools/(web|cli)/'
refuse tools/lab/simulator 'tools/' '"tools/lab/simulator/'
# The compatibility libraries use libsluice; libsluice does not include them.
refuse client 'client/compat/' '^client/compat/'
# Each third-party library is included in one place only.
home() { # HEADER-REGEX FILE-REGEX
  if grep -rlE "#include <($1)" base metadata tiering gpu fs client tools | grep -vE "$2"; then
    echo "these include <$1> outside its home" >&2
    bad=1
  fi
}
home 'rocksdb/' '^metadata/'
home 'spdlog/' '^base/log'
home 'boost/filesystem' '^base/path'
home 'fuse_lowlevel' '^fs/fuse/operations\.hpp'
# Locks must be checkable by clang, and tests must be able to set the time.
only_in() { # CODE-REGEX FILE-REGEX
  if grep -rnE --include='*.[ch]pp' "$1" base metadata tiering gpu fs client tools | grep -vE "^($2)"; then
    echo "these are used outside of $2" >&2
    bad=1
  fi
}
only_in 'std::(mutex|shared_mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable)' 'base/mutex\.hpp'
only_in 'std::time\((nullptr|0|NULL)\)' 'base/clock\.cpp|tools/(bench|lab)/'
home 'CLI/' '^tools/common/arguments\.cpp'
exit $bad
