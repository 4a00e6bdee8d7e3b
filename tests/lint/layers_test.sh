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
# The library in a client's process has base and gpu; the public headers have nothing below them.
if grep -rnE '#include "(metadata|tiering|fs|tools)/' client; then
  echo "client/ includes what only the daemon and the tools have" >&2
  bad=1
fi
if grep -rnE '#include "client/' base metadata tiering gpu fs | grep -v 'client/include/sluice/ioctl\.h"'; then
  echo "the library is included from below it" >&2
  bad=1
fi
# Inside fs/ the core knows neither FUSE nor those who ask it.
if grep -rnE '#include "fs/(fuse|gpu|control|daemon)' fs/core; then
  echo "fs/core/ includes what is built on it" >&2
  bad=1
fi
# Third-party libraries have one home each.
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
# Locks that clang checks, and a time that tests can set.
only_in() { # CODE-REGEX FILE-REGEX
  if grep -rnE --include='*.[ch]pp' "$1" base metadata tiering gpu fs client tools | grep -vE "^($2)"; then
    echo "these are used outside of $2" >&2
    bad=1
  fi
}
only_in 'std::(mutex|shared_mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable)' 'base/mutex\.hpp'
only_in 'std::time\((nullptr|0|NULL)\)' 'base/clock\.cpp|tools/(bench|lab)/'
exit $bad
