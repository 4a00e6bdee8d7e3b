#!/usr/bin/env bash
# wheel_test.sh PYTHON LIBSLUICE LIBCUDA SLUICE: builds the wheels, installs this machine's in a new virtual environment, which
# sees no other package, and runs the tests of the Python package with it, on plain files and on a mount with the fake GPU.
set -euo pipefail

python=$1 library=$2 fake_cuda=$3 sluice=$4
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }
folder=$(mktemp -d -p "${SLUICE_TEST_DIR:-${TMPDIR:-/tmp}}" wheel.XXXXXX)
trap 'rm -rf "$folder"' EXIT
if [[ ! ${SLUICE_PACKAGES:-} ]]; then
  # The wheel has dependencies of its own, which a change elsewhere can break.
  (cd "$repo" && cmake --preset "wheel-$(uname -m)" -B "$folder/wheel") >"$folder/log" 2>&1 || { cat "$folder/log"; fail "the wheel can't be configured"; }
  skip "it builds libsluice again; SLUICE_PACKAGES=1 or tools/test.sh --packages runs it; its build was configured"
fi
"$python" -m venv "$folder/venv" || skip "$python has no venv; tools/setup.sh installs it"
unset PYTHONPATH SLUICE_LIBRARY
export PYTHONDONTWRITEBYTECODE=1

"$repo/tools/package.sh" --wheels
wheels=("$repo"/build/packages/*_"$(uname -m)".whl)
[[ ${#wheels[@]} == 1 && -s ${wheels[0]} ]] || fail "not one wheel for this machine: ${wheels[*]}"
"$folder/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "${wheels[0]}"
rm "$folder/venv/bin/pip" # nothing is added from here on

cat >"$folder/try.py" <<'PROGRAM'
import base64, csv, hashlib, importlib.metadata, pathlib, sys
import sluice

package = pathlib.Path(sluice.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert sluice.library_version() == sluice.__version__ == importlib.metadata.version("sluice")
library = str(package / "lib" / "libsluice.so.1")
assert any(line.split()[-1] == library for line in open("/proc/self/maps")), "another libsluice is loaded"
with sluice.open(__file__) as file:
    assert file.read() == open(__file__, "rb").read()
try:
    sluice.open("/none")
except FileNotFoundError as error:
    assert isinstance(error, sluice.Error) and error.filename == "/none"
(plugin,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="sluice")
assert callable(plugin.load())
# What pip installed is what RECORD says.
checked = 0
for name, digest, size in csv.reader(importlib.metadata.distribution("sluice").read_text("RECORD").splitlines()):
    if digest:
        content = (package.parent / name).read_bytes()
        found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (f"sha256={found}", str(len(content))) == (digest, size), name
        checked += 1
assert checked >= 12, checked
PROGRAM
"$folder/venv/bin/python" "$folder/try.py"

# SLUICE_ACCELERATE: without it nothing is imported at the start; with it only the small module that waits for others.
said=$("$folder/venv/bin/python" -c 'import sys; print([name for name in sys.modules if "sluice" in name])')
[[ $said == '[]' ]] || fail "imported without SLUICE_ACCELERATE: $said"
said=$(SLUICE_ACCELERATE=1 "$folder/venv/bin/python" -c 'import sys; print([name for name in sys.modules if "sluice" in name])')
[[ $said == "['_sluice_accelerate']" ]] || fail "imported with SLUICE_ACCELERATE=1: $said"

# The tag must not promise more than the library keeps.
tag=$(basename "${wheels[0]}" .whl)
newest=$(readelf --wide -V "$folder"/venv/lib/python3*/site-packages/sluice/lib/libsluice.so.1 | grep -oE 'GLIBC_[0-9]+\.[0-9]+' | sort -Vu | tail -n 1)
[[ $tag == *-manylinux_"$(tr . _ <<<"${newest#GLIBC_}")"_* ]] || fail "$tag, but the library needs $newest"
if said=$("$repo/packaging/wheel.py" "$library" "$folder" 2>&1); then fail "a wheel of a library that needs others: $said"; fi
[[ $said == *"which other systems may not have"* ]] || fail "$said"

# pytest and NumPy are those of the system.
sed -i 's/^include-system-site-packages = false/include-system-site-packages = true/' "$folder/venv/pyvenv.cfg"
"$here/run.sh" "$folder/venv/bin/python" '' "$fake_cuda" "$sluice"
