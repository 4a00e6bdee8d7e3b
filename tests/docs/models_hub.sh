# The hub that docs/models.md downloads from, and what must be true after each download. Sourced by the test of that page.

start_hub() {
  local each
  for each in models/Qwen/Qwen3-0.6B datasets/Salesforce/wikitext; do mkdir -p hub/$each; done
  head -c 3M /dev/urandom > hub/models/Qwen/Qwen3-0.6B/model.safetensors
  echo '{}' > hub/models/Qwen/Qwen3-0.6B/config.json
  head -c 1M /dev/urandom > hub/datasets/Salesforce/wikitext/train.parquet
  python3 "$TESTS/fake_hub.py" hub 2>/dev/null & hub=$!
  export HF_ENDPOINT=http://127.0.0.1:8471
  eventually curl -sfI $HF_ENDPOINT/Qwen/Qwen3-0.6B/resolve/main/config.json
}

check_downloads() {
  cd /mnt/models/hf/hub
  cmp models--Qwen--Qwen3-0.6B/snapshots/*/model.safetensors ~/hub/models/Qwen/Qwen3-0.6B/model.safetensors
  [[ $(getfattr --only-values -n user.sluice.tier models--Qwen--Qwen3-0.6B/snapshots/*/model.safetensors) == nvme ]]
  [[ $(getfattr --only-values -n user.sluice.tier datasets--Salesforce--wikitext/snapshots/*/train.parquet) == hdd ]]
  [[ -L $(echo models--Qwen--Qwen3-0.6B/snapshots/*/model.safetensors) ]]
  sluice move --to hdd --wait models--Qwen--Qwen3-0.6B
  cmp models--Qwen--Qwen3-0.6B/snapshots/*/model.safetensors ~/hub/models/Qwen/Qwen3-0.6B/model.safetensors
  hf cache verify Qwen/Qwen3-0.6B
  cd ~
}

check_download_after_deletion() {
  rm /mnt/models/hf/hub/models--Qwen--Qwen3-0.6B/blobs/*
  hf download Qwen/Qwen3-0.6B
  cd hub/models/Qwen/Qwen3-0.6B
  cmp model.safetensors /mnt/models/hf/hub/models--Qwen--Qwen3-0.6B/snapshots/*/model.safetensors
  cd ~
  kill $hub
}
