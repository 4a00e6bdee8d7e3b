#!/usr/bin/env bash
# Builds the packages, installs them in fresh roots of this Debian release and later ones, uses and removes them, and checks
# that nothing is left.
#
#   SLUICE_PACKAGES=1 tests/packaging/run.sh [SUITE]...     default: bookworm and trixie, but not older than this machine
#
# Needs root, debootstrap and the archive of this machine's apt. Exits with 77 (skipped) if one of them is missing.
# Environment:
#   SLUICE_PACKAGES     must be set, because the test takes minutes and 600 MB in the cache
#   SLUICE_DEPS_CACHE   where the fresh roots are cached (default /var/cache/sluice)
#   SLUICE_TEST_DIR     where the roots are unpacked (default /var/tmp)
set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
cache=${SLUICE_DEPS_CACHE:-/var/cache/sluice}
skip() { echo "packaging: skipped: $*"; exit 77; }
say() { echo "packaging: $*"; }

[[ ${SLUICE_PACKAGES:-} ]] || skip "it takes minutes and downloads; SLUICE_PACKAGES=1 or tools/test.sh --packages runs it"
((EUID == 0)) || skip "it must be root"
[[ -e /dev/fuse ]] || skip "/dev/fuse does not exist"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
command -v dpkg-shlibdeps >/dev/null || skip "dpkg-dev is not installed"
# shellcheck disable=SC1091
. /etc/os-release
[[ $ID == debian ]] || skip "the archive of this machine is not Debian's"

# In new namespaces, so that mounts and processes disappear when this script ends in any way.
if [[ ! ${SLUICE_IN_NAMESPACE:-} ]]; then
  SLUICE_IN_NAMESPACE=1 exec unshare --mount --pid --fork --kill-child=TERM "$0" "$@"
fi

suites=("$@")
if ((${#suites[@]} == 0)); then
  # Packages built on a release work on later ones, not on earlier ones.
  for suite in bookworm trixie; do
    if [[ $suite == "$VERSION_CODENAME" ]] || ((${#suites[@]})); then suites+=("$suite"); fi
  done
  ((${#suites[@]})) || suites=("$VERSION_CODENAME")
fi
scratch=$(mktemp -d -p "${SLUICE_TEST_DIR:-/var/tmp}" sluice-packaging.XXXXXX)
finish() {
  local code=$?
  trap - EXIT
  umount -R --lazy "$scratch" 2>/dev/null || true
  # A root cannot be removed while its pool is mounted.
  rm -rf --one-file-system "$scratch" 2>/dev/null || { sleep 1; rm -rf --one-file-system "$scratch"; }
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mount --bind "$scratch" "$scratch" # so that one umount -R unmounts everything below
mount --make-rprivate "$scratch"

"$repo/tools/package.sh"
packages=("$repo"/build/packages/*.deb)
((${#packages[@]} == 5)) || { say "there are ${#packages[@]} packages, not 5" >&2; exit 1; }
wheels=("$repo"/build/packages/*_"$(uname -m)".whl)
if command -v lintian >/dev/null; then
  # Not an upload to Debian, which would answer a request for the package.
  lintian --fail-on error,warning --allow-root --suppress-tags initial-upload-closes-no-bugs "${packages[@]}" || { say "lintian finds faults in the packages" >&2; exit 1; }
fi

# shellcheck disable=SC2016
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n 1 || true)
[[ $archive ]] || skip "no package archive is configured in /etc/apt"

# make_root SUITE: unpacks a fresh system with everything that the packages and checks need. Nothing is downloaded later.
make_root() {
  local suite=$1 root=$scratch/$1 tools=python3,python3-venv,mount,systemd kept
  if [[ $suite == "${suites[0]}" ]]; then tools+=,gcc,libc6-dev,pkgconf; fi
  kept=$cache/root-$suite-$(dpkg --print-architecture)-$(cksum <<<"$tools" | cut -d' ' -f1).tar
  if [[ ! -s $kept ]]; then
    say "$suite: making a root (once)"
    debootstrap --variant=minbase --include="$tools" "$suite" "$root" "$archive" >"$scratch/debootstrap.log" 2>&1 ||
      { tail -n 20 "$scratch/debootstrap.log" >&2; skip "debootstrap of $suite failed"; }
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    mkdir -p "$cache"
    tar cf "$kept.new" -C "$root" . && mv "$kept.new" "$kept"
  else
    mkdir "$root"
    tar xf "$kept" -C "$root"
  fi
}

# try_service SUITE: boots the root if it has systemd, and tests the unit there.
try_service() {
  local suite=$1 root=$scratch/$1
  [[ -x $root/lib/systemd/systemd ]] || return 0
  timeout -k 5 120 unshare --mount --pid --cgroup --ipc --uts --fork --kill-child \
    "$repo/tests/packaging/boot.sh" "$root" </dev/null >"$scratch/boot.log" 2>&1 || true
  if [[ ! -e $root/packages/result ]]; then
    say "$suite: the service was not tried, systemd does not start here: $(tail -n 1 "$scratch/boot.log")"
    case ,${SLUICE_REQUIRE:-}, in *,systemd,*) return 1 ;; esac
  elif [[ $(tail -n 1 "$root/packages/result") != passed ]]; then
    cat "$root/packages/result" >&2
    return 1
  else
    say "$suite: the service, under systemd"
  fi
}

failed=0
for suite in "${suites[@]}"; do
  make_root "$suite"
  root=$scratch/$suite
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/dev"
  for device in null zero full urandom fuse; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/packages"
  cp "${packages[@]}" "${wheels[@]}" "$repo"/tests/packaging/{inside.sh,notify.py,service.sh} "$repo/packaging/debian/system-libraries" "$root/packages/"
  if env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" bash /packages/inside.sh &&
    try_service "$suite"; then
    say "$suite: passed"
  else
    say "$suite: FAILED" >&2
    failed=1
  fi
  umount -R --lazy "$root/dev" "$root/proc"
  rm -rf --one-file-system "$root"
done
exit $failed
