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
# Inside tools/: common < web < cli, and common < lab. The programs have nothing of each other; the simulator, a library in the
# lab, is also used by the web page.
refuse() { # FOLDER INCLUDE-REGEX [EXCEPT-REGEX]
  if grep -rnE "#include \"($2)" "$1" | grep -vE "${3:-^$}"; then
    echo "$1/ includes $2, against the direction of the layers" >&2
    bad=1
  fi
}
refuse tools/common 'tools/(web|cli|lab)/'
refuse tools/web 'tools/(cli|lab)/' '"tools/lab/simulator/'
refuse tools/cli 'tools/lab/'
refuse tools/lab 'tools/(web|cli)/'
refuse tools/lab/simulator 'tools/' '"tools/lab/simulator/'
# What imitates the interfaces of others stands on the library; the library does not know of it.
refuse client 'client/compat/' '^client/compat/'
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
home 'CLI/' '^tools/common/arguments\.cpp'
home 'fuse_lowlevel' '^fs/fuse_ops\.hpp'
exit $bad
