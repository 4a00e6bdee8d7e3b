#!/usr/bin/env bash
# copyright.sh LICENSE PROGRAM OUTPUT: writes the licence of Sluice and those of the libraries that PROGRAM is linked with or
# contains, copied from their packages.
set -euo pipefail
license=$1 program=$2
output=$3
here=$(dirname "$0")

# Compiled in: headers, and the static libfuse, which has the same licence as the package of the system.
packages=(fuse3 libcli11-dev libtomlplusplus-dev nlohmann-json3-dev)
while read -r library; do
  ! grep -qEf "$here/system-libraries" <<<"${library##*/}" || continue
  # Searched by name only: dpkg may list it below /lib, which may be a link to /usr/lib.
  owner=$(dpkg -S "*/$(basename "$(realpath "$library")")" | head -n 1)
  packages+=("${owner%%:*}")
done < <(ldd "$program" | grep -oE '=> /[^ ]+' | cut -c 4-)

{
  echo "Sluice is distributed under these terms:"
  echo
  cat "$license"
  echo
  echo "It contains, or includes in a private directory, parts of the packages below. Their sources are those of the"
  echo "distribution on which this package was built, $(. /etc/os-release && echo "$PRETTY_NAME")."
  for package in $(printf '%s\n' "${packages[@]}" | sort -u); do
    printf '\n======== %s %s ========\n\n' "$package" "$(dpkg-query -W -f '${Version}' "$package" | head -n 1)"
    cat "/usr/share/doc/$package/copyright"
  done
} >"$output.new"
mv "$output.new" "$output"
