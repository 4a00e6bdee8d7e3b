# What the test of docs/cookbook.md does between the recipes: what readers have already, and what must be true after each. Sourced.

make_first_files() {
  mkdir /mnt/pool/projects /mnt/pool/scans
  echo plan > /mnt/pool/projects/plan.txt
  head -c 2M /dev/urandom > /mnt/pool/scans/first.raw
}

# The lines that `sluice tier add` printed, moved up to where they belong.
move_ssd_up() {
  tail -n 3 /etc/sluice/pool.toml | grep 'path = "/ssd/sluice/tier"'
  sed -i -z 's/\(\[\[tier\]\]\nname = "hdd".*\)\(\[\[tier\]\]\nname = "ssd".*\)/\2\n\1/' /etc/sluice/pool.toml
}

check_added_disk() {
  [[ $(sluice status /mnt/pool | grep -oE '^(nvme|ssd|hdd) ' | xargs) == 'nvme ssd hdd' ]]
  sluice move --to ssd --wait /mnt/pool/scans
  test -e /ssd/sluice/tier/scans/first.raw
}

check_pin() { test -e /nvme/sluice/tier/scans/first.raw; }

check_rule() {
  echo image > /mnt/pool/projects/disk.iso
  sluice tier run /mnt/pool
  test -e /hdd/sluice/tier/projects/disk.iso
}

check_backup() { cmp /mnt/pool/scans/first.raw /backup/pool/scans/first.raw; }
check_restored() { grep -x plan /mnt/pool/projects/plan.txt; }

lose_disk() {
  sluice move --to ssd --wait /mnt/pool/scans
  sluice plan /mnt/pool
  umount -l /ssd
  eventually is_offline ssd
}

check_lost() { sluice tier lost ssd /mnt/pool | grep scans/first.raw; }

check_replaced() {
  cmp /backup/pool/scans/first.raw /mnt/pool/scans/first.raw
  sluice move --to ssd --wait /mnt/pool/scans
}

remove_ssd() {
  has_no_files /ssd2/sluice/tier
  sed -i -z 's/\[\[tier\]\]\nname = "ssd"\n[^\n]*\n//' /etc/sluice/pool.toml
}

prepare_nfs() {
  echo 'NFSV4 { Graceless = true; }' >> /etc/ganesha/ganesha.conf
  rpcbind
}

check_nfs() {
  grep -x hello /mnt/pool/shared/hello.txt
  test -e /hdd/sluice/tier/projects/plan.txt
}

check_samba() {
  grep -x film /mnt/pool/media/film.txt
  stop smbd
}

make_models() { mkdir -p /mnt/pool/models && echo weights > /mnt/pool/models/model.bin; }

check_missing_directory() {
  if podman run --rm -v /mnt/pool/nothing:/models docker.io/library/debian:12 ls /models; then false; fi
}

check_uninstalled() {
  cmp /backup/pool/scans/first.raw /hdd/sluice/tier/scans/first.raw
  grep -x plan /hdd/sluice/tier/projects/plan.txt
}

make_branches() {
  mount -o loop /.disks/ssd /ssd
  rm -rf /ssd/sluice /hdd/sluice /nvme/sluice
  mkdir -p /ssd/films /hdd/films
  echo one > /ssd/films/one.mkv
  echo two > /hdd/films/two.mkv
}

check_branches() { grep -x one /mnt/pool/films/one.mkv && grep -x two /mnt/pool/films/two.mkv; }

check_moved_film() {
  grep -x two /nvme/films/two.mkv
  sluice umount /mnt/pool
}
