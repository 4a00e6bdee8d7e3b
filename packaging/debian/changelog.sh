#!/usr/bin/env bash
# changelog.sh VERSION CONTACT SOURCE OUTPUT: writes into the folder OUTPUT our changes (changelog.gz) and the changelog of the
# packages, which Debian wants in each of them (changelog.Debian.gz).
set -euo pipefail
version=$1 contact=$2 source=$3 output=$4
mkdir -p "$output"
gzip -9nc "$source/CHANGELOG.md" >"$output/changelog.gz"
# The time of the last commit: the same sources give the same packages.
seconds=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2>/dev/null || stat -c %Y "$source/CHANGELOG.md")}
gzip -9nc >"$output/changelog.Debian.gz" <<EOF
sluice ($version) unstable; urgency=medium

  * Built from the sources of version ${version%-*}, whose changes are in
    changelog.gz of the package sluice.

 -- $contact  $(LC_ALL=C date -u -R -d "@$seconds")
EOF
