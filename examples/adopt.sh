#!/usr/bin/env bash
# adopt.sh DIRECTORY: a disk full of files becomes a tier, a faster disk is added above it, files
# move, and at the end Sluice is removed again. Nothing is imported or exported. DIRECTORY is
# created and must not exist. Run it as root.
set -euo pipefail
dir=$1
mkdir "$dir"
mkdir "$dir"/{old,new,mnt,plain}

# Lists everything that could get lost: content, modes, owners, times, links, attributes, unusual
# names.
describe() {
  (
    cd "$1"
    find . -mindepth 1 -path ./.sluice -prune -o -type d -printf '%y %m %U:%G %P\n' -o -printf '%y %m %U:%G %s %n %T@ %l %P\n' | sort
    find . -path ./.sluice -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
    find . -path ./.sluice -prune -o -type f -print0 | sort -z | xargs -0 getfattr -d -m '^user\.' --
  )
}

# A disk as it may look after some years.
cd "$dir/old"
mkdir -p projects/2024/raw archive
head -c 3M /dev/urandom >projects/2024/raw/scan.bin
echo "kept for later" >archive/notes.txt
ln archive/notes.txt projects/2024/notes-again.txt
ln -s ../archive/notes.txt projects/notes
truncate -s 1M projects/2024/sparse.img
touch -d 2019-05-17 archive/notes.txt
touch "archive/name with spaces" $'archive/a\nnew line' 'archive/--version' 'archive/naïve ☃' $'archive/no-utf8-\xff'
setfattr -n user.camera -v "Leica M3" projects/2024/raw/scan.bin
chown 1234:5678 projects/2024/raw/scan.bin archive
chmod 2750 archive
chmod 04711 projects/2024/notes-again.txt
cd - >/dev/null
describe "$dir/old" >"$dir/before"

# The empty, faster disk comes first.
sluice mount --tier "fast=$dir/new" --tier "slow=$dir/old" --state "$dir/state" "$dir/mnt"
trap 'sluice umount "$dir/mnt"' EXIT
describe "$dir/mnt" | diff "$dir/before" -
echo "adopted: the tree is unchanged"

sluice move --to fast --wait "$dir/mnt/projects"
describe "$dir/mnt" | diff "$dir/before" -
[[ -f $dir/new/projects/2024/raw/scan.bin && ! -e $dir/old/projects/2024/raw/scan.bin ]]
echo "moved: the projects are on the fast disk, and the tree is unchanged"

# Remove Sluice again.
sluice umount "$dir/mnt"
trap - EXIT
rm -rf "$dir"/{old,new}/.sluice "$dir/state"
cp -a "$dir/old/." "$dir/new/." "$dir/plain/"
describe "$dir/plain" | diff "$dir/before" -
echo "removed: both disks together contain the same tree"
rm -rf "$dir"
