#!/usr/bin/env bash
# Installs what Sluice needs to build and run: missing packages, and libfuse 3.18 as a static library in .deps/fuse if
# the libfuse of the distribution is older. Running it again takes a second.
#
#   tools/setup.sh             for building, testing and mounting
#   tools/setup.sh --lint      also clang, clang-format and clang-tidy, for the preset `clang` and the lint tests, and mypy
#                              and pyright from PyPI in .deps/python-lint
#   tools/setup.sh --dev       as --lint, and mandoc, zsh and fish
#   tools/setup.sh --packages  also for building and testing packages
#   tools/setup.sh --browser   also Chromium, for the test of the web page (Debian; about 110 MB)
#   tools/setup.sh --cookbook  also what the tests of docs/cookbook.md and docs/models.md use if it is there: nfs-ganesha, Samba and
#                              podman, whose services are not started, and huggingface_hub from PyPI in .deps/python-cookbook
#   tools/setup.sh --engines   also the shared filesystems of the tests with the label `engine`: MooseFS, whose services are not
#                              started (Debian 12)
#
# Environment:
#   SLUICE_FUSE_SOURCE   a fuse3 source archive (.orig.tar.gz, 3.18 or newer) to use instead of downloading one
#   SLUICE_DEPS_CACHE    where built dependencies are kept for the next clone (default /var/cache/sluice)
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
cache=${SLUICE_DEPS_CACHE:-/var/cache/sluice}
fuse_wanted=3.18
fuse_prefix=$repo/.deps/fuse

packages=(g++ cmake ninja-build meson pkgconf ccache
  liburing-dev libnuma-dev librocksdb-dev libspdlog-dev libboost-filesystem-dev libgtest-dev
  libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
  libsnappy-dev libgflags-dev liblz4-dev libzstd-dev libbz2-dev zlib1g-dev # required by RocksDB's CMake package
  fuse3 e2fsprogs xfsprogs attr acl curl sqlite3 rsync git util-linux procps
  python3 python3-pytest python3-numpy python3-venv)

lint=(clang clang-format clang-tidy)
# Debian's mypy is too old, and there is no pyright. nodejs: pyright is a program for Node.
python_lint=('mypy==2.4.1' 'pyright[nodejs]==1.1.414')
python_cookbook=('huggingface_hub==2.4.0')
wants_python_lint='' wants_python_cookbook=''
starts_services=1
for option; do
  case $option in
    --lint) packages+=("${lint[@]}") wants_python_lint=1 ;;
    --dev) packages+=("${lint[@]}" mandoc zsh fish) wants_python_lint=1 ;;
    --packages) packages+=(dpkg-dev debootstrap lintian) ;;
    # On Ubuntu it is a snap, which the test cannot use.
    --browser) if grep -qx 'ID=debian' /etc/os-release; then packages+=(chromium); fi ;;
    --cookbook)
      packages+=(nfs-ganesha nfs-ganesha-vfs libnfs-utils samba smbclient podman python3-yaml iproute2 jq)
      starts_services='' wants_python_cookbook=1 ;;
    # Only where the archive has it; the tests are skipped elsewhere.
    --engines)
      starts_services=''
      if apt-cache show moosefs-master >/dev/null 2>&1; then
        packages+=(moosefs-master moosefs-chunkserver moosefs-client iproute2 jq)
      else
        echo "setup: the archive of this machine has no MooseFS; what needs it will not be tested"
      fi ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "setup: unknown option '$option'; allowed: --lint, --dev, --packages, --browser, --cookbook, --engines, --help" >&2; exit 2 ;;
  esac
done

say() { echo "setup: $*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs a long command. Shows the elapsed seconds on a terminal, and the end of the output if it fails.
step() {
  local what=$1 started=$SECONDS log=$scratch/log
  shift
  "$@" >"$log" 2>&1 </dev/null &
  local job=$!
  if [[ -t 1 ]]; then
    while kill -0 $job 2>/dev/null; do
      printf '\rsetup: %s ... %d s' "$what" $((SECONDS - started))
      sleep 0.5
    done
    printf '\r\033[K'
  fi
  if wait $job; then
    say "$what: done in $((SECONDS - started)) s"
  else
    tail -n 25 "$log" >&2
    return 1
  fi
}

# Makes packages leave their services alone while they are installed, unless the machine has rules of its own for that.
forbid_services() {
  local rules=/usr/sbin/policy-rc.d
  [[ ! -e $rules ]] || return 0
  printf '#!/bin/sh\nexit 101\n' >"$scratch/policy-rc.d"
  install -m 755 "$scratch/policy-rc.d" $rules
  trap 'rm -rf "$scratch"; rm -f /usr/sbin/policy-rc.d' EXIT
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || fail "these packages are missing and only root can install them: ${missing[*]}" \
    "run: sudo tools/setup.sh"
  export DEBIAN_FRONTEND=noninteractive
  if [[ ! $starts_services ]]; then forbid_services; fi
  step "package lists" apt-get -q update || fail "apt-get update failed; are the sources in /etc/apt reachable?"
  step "installing ${#missing[@]} packages (${missing[*]})" \
    apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install the packages; its last lines are above"
}

# Prints the version of fuse3 in folder $1 (empty: of the system), if it is new enough.
fuse_version() {
  local path=${1:+$1/lib/pkgconfig}
  PKG_CONFIG_PATH=$path pkg-config --atleast-version=$fuse_wanted fuse3 2>/dev/null || return 1
  PKG_CONFIG_PATH=$path pkg-config --modversion fuse3
}

# apt with its own sources, lists and cache, so that the configuration of the machine is not changed. Signatures are
# checked as usual, with the keyring of the configured sources or of the distribution.
private_apt() {
  apt-get -q -o Dir::State="$scratch/apt" -o Dir::State::lists="$scratch/apt/lists" -o Dir::State::status=/dev/null \
    -o Dir::Cache="$scratch/apt/cache" -o Dir::Etc::sourcelist="$scratch/apt/sources.list" \
    -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
}

configured_keyring() {
  local file
  # Two forms: "Signed-By: /path" in .sources, "[signed-by=/path]" in .list.
  file=$(grep -rhoiE 'signed-by[:=] *(/[^] ,]+)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    grep -oE '/.*' | grep -E "$1-archive" | head -n 1 || true)
  [[ -r $file ]] || file=/usr/share/keyrings/$1-archive-keyring.gpg
  [[ -r $file ]] && echo "$file"
}

# Downloads the source of libfuse $fuse_wanted or newer into $scratch/source and sets fuse_archive to its path.
fuse_archive=
download_fuse() {
  local distribution suites uri keyring suite version
  # shellcheck disable=SC1091
  distribution=$(. /etc/os-release && echo "$ID")
  case $distribution in
    debian) suites='sid' ;;
    ubuntu) suites='devel resolute' ;;
    *) suites='sid devel' ;;
  esac
  # The archive of the distribution; archives of GPU vendors and others may come first.
  # shellcheck disable=SC2016
  uri=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
    grep -E '^(Debian|Ubuntu) ' | grep -viE -- '-security|backports|/debian-security' | head -n 1 | cut -d' ' -f2)
  [[ $uri ]] || { why="no package archive is configured in /etc/apt"; return 1; }
  keyring=$(configured_keyring "$distribution" || true)
  mkdir -p "$scratch"/apt/{lists,cache/archives}/partial "$scratch/source"
  for suite in $suites; do
    echo "deb-src ${keyring:+[signed-by=$keyring] }$uri $suite main" >"$scratch/apt/sources.list"
    # Without this, apt treats an unreachable archive as a warning.
    private_apt -o APT::Update::Error-Mode=any update >"$scratch/apt.log" 2>&1 || continue
    version=$(private_apt source --print-uris fuse3 2>>"$scratch/apt.log" |
      grep -oE 'fuse3_[0-9.]+[0-9]\.orig\.tar\.[a-z0-9]+ ' | head -n 1 | grep -oE '[0-9]+\.[0-9.]+[0-9]' | head -n 1 || true)
    dpkg --compare-versions "${version:-0}" ge $fuse_wanted || continue
    (cd "$scratch/source" && private_apt source --download-only fuse3) >>"$scratch/apt.log" 2>&1 || continue
    fuse_archive=$(find "$scratch/source" -name 'fuse3_*.orig.tar.*' ! -name '*.asc' | head -n 1)
    [[ $fuse_archive ]] && { say "libfuse $version: source from the configured archive, suite $suite"; return 0; }
  done
  why="the configured archive has no fuse3 >= $fuse_wanted in: $suites ($(grep -E -m 1 '^[EW]:' "$scratch/apt.log" || echo 'not in any of them'))"
  return 1
}

compile_fuse() {
  local source=$scratch/fuse-source
  mkdir -p "$source"
  tar xf "$fuse_archive" -C "$source" --strip-components=1
  # useroot and initscriptdir: nothing outside the prefix is touched. relocatable: the cache is copied between clones.
  meson setup "$scratch/fuse-build" "$source" --prefix="$fuse_prefix" --libdir=lib --buildtype=release \
    -Ddefault_library=static -Db_pie=true -Db_staticpic=true -Dpkgconfig.relocatable=true -Denable-io-uring=true \
    -Dexamples=false -Dtests=false -Dutils=false -Duseroot=false -Dinitscriptdir=
  ninja -C "$scratch/fuse-build"
  DESTDIR=$scratch/fuse-install meson install --no-rebuild -C "$scratch/fuse-build"
}

# Replaces $2 by the finished tree $1 with one rename, so that an interrupted run leaves no partial tree.
place() {
  mkdir -p "$(dirname "$2")" && rm -rf "$2.new" && cp -a "$1" "$2.new" && rm -rf "$2" && mv -T "$2.new" "$2"
}

provide_fuse() {
  local version cached why
  if version=$(fuse_version ""); then say "libfuse $version: the system's"; return; fi
  if version=$(fuse_version "$fuse_prefix"); then say "libfuse $version: in .deps/fuse"; return; fi
  # A static library works only with the compiler and C library that it was built for.
  # shellcheck disable=SC1091
  cached=$cache/fuse-$(. /etc/os-release && echo "$ID-${VERSION_ID:-${VERSION_CODENAME:-rolling}}")-$(uname -m)
  if version=$(fuse_version "$cached"); then
    place "$cached" "$fuse_prefix"
    say "libfuse $version: copied from $cached"
    return
  fi
  if [[ ${SLUICE_FUSE_SOURCE:-} ]]; then
    fuse_archive=$SLUICE_FUSE_SOURCE
    [[ -r $fuse_archive ]] || fail "SLUICE_FUSE_SOURCE: cannot read $fuse_archive"
  else
    download_fuse || fail "libfuse >= $fuse_wanted is needed, this system has $(pkg-config --modversion fuse3 2>/dev/null || echo none)" \
      "its source could not be had: $why" \
      "get fuse3's source archive (fuse3_3.18.*.orig.tar.gz) elsewhere, then: SLUICE_FUSE_SOURCE=path/to/it tools/setup.sh"
  fi
  # In a new shell: `set -e` has no effect in a function whose result is tested.
  export -f compile_fuse
  export scratch fuse_prefix fuse_archive
  step "building libfuse from $(basename "$fuse_archive")" bash -euo pipefail -c compile_fuse ||
    fail "libfuse did not build; its last lines are above"
  place "$scratch/fuse-install$fuse_prefix" "$fuse_prefix"
  version=$(fuse_version "$fuse_prefix") || fail "$fuse_archive is not libfuse >= $fuse_wanted"
  # The cache is for the next clone; skipped if it is not writable.
  place "$fuse_prefix" "$cached" 2>/dev/null || true
  say "libfuse $version: in .deps/fuse"
}

# Without these, a test is skipped or leaves commands out, so a machine that does not reach PyPI is no failure.
provide_python() { # NAME PROGRAM PACKAGE...
  local prefix=$repo/.deps/python-$1 program=$2 wanted="${*:3}"
  shift 2
  [[ $(cat "$prefix/installed" 2>/dev/null) != "$wanted" ]] || return 0
  rm -rf "$prefix"
  # A virtual environment can't be moved: it is made in its place, and complete only with the file `installed`.
  if step "$wanted from PyPI" bash -euo pipefail -c '
    python3 -m venv "$0" && "$0/bin/pip" --disable-pip-version-check install "${@:2}" && "$0/bin/$1" --version' "$prefix" "$program" "$@"; then
    echo "$wanted" >"$prefix/installed"
  else
    rm -rf "$prefix"
    say "could not install $wanted; what needs it will not be tested"
  fi
}

install_packages
provide_fuse
if [[ $wants_python_lint ]]; then provide_python lint pyright "${python_lint[@]}"; fi
if [[ $wants_python_cookbook ]]; then provide_python cookbook hf "${python_cookbook[@]}"; fi
