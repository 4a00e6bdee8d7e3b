# SPDX-License-Identifier: BSD-2-Clause
"""sluice.accelerate with the real transformers, diffusers and accelerate, on small models with random weights."""
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from accelerated import content_of, read_bytes, reasons  # noqa: E402


def same_weights(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        if not tensor.is_meta:
            assert content_of(found[name]) == content_of(tensor), name
        assert found[name].is_meta == tensor.is_meta, name


@pytest.fixture(scope="module")
def transformers():
    module = pytest.importorskip("transformers", minversion="5")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


@pytest.fixture(scope="module")
def diffusers():
    pytest.importorskip("diffusers.models.model_loading_utils")  # before a test replaces its functions
    return pytest.importorskip("diffusers")


@pytest.fixture
def llama(transformers, mount):
    """A folder with a model in several files."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=12, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=500, tie_word_embeddings=False, dtype=torch.bfloat16)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(mount / "llama", max_shard_size="200KB")
    return mount / "llama"


def load(transformers, folder, monkeypatch, **options):
    # It would move the model to devices that this machine may not have.
    monkeypatch.setattr(transformers.modeling_utils, "accelerate_dispatch", lambda *_: None)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def file_bytes(folder):
    from safetensors import safe_open
    return sum(safe_open(path, "pt").get_tensor(name).nbytes for path in folder.glob("*.safetensors")
               for name in safe_open(path, "pt").keys())


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
@pytest.mark.parametrize("sync", [False, True])
def test_transformers_reads_to_the_gpu(transformers, llama, gpu, monkeypatch, dtype, sync):
    if sync:
        monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    before = read_bytes()
    expected = load(transformers, llama, monkeypatch, device_map="cpu", dtype=dtype)
    assert read_bytes() == before, "a tensor that stays on the CPU was loaded"
    found = load(transformers, llama, monkeypatch, device_map={"": str(gpu)}, dtype=dtype)
    same_weights(found, expected)
    assert read_bytes() - before == file_bytes(llama), "not every byte once"
    assert {parameter.device.type for parameter in found.parameters()} == {gpu.type}
    assert not reasons()


def test_transformers_with_several_devices(transformers, llama, gpu, monkeypatch, tmp_path):
    """Random device maps: exactly the tensors that go to the GPU are read by libsluice."""
    expected = load(transformers, llama, monkeypatch)
    chance = random.Random(5)
    parts = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", *(f"model.layers.{i}" for i in range(12))]
    for _ in range(6):
        places = {part: chance.choice([str(gpu), str(gpu), "cpu"]) for part in parts}
        before = read_bytes()
        same_weights(load(transformers, llama, monkeypatch, device_map=places), expected)
        wanted = sum(tensor.nbytes for name, tensor in expected.named_parameters()
                     if any(name.startswith(f"{part}.") and place == str(gpu) for part, place in places.items()))
        assert read_bytes() - before == wanted
    places = {part: "disk" if "layers" in part else str(gpu) for part in parts}
    found = load(transformers, llama, monkeypatch, device_map=places, offload_folder=str(tmp_path / "offload"))
    for name, tensor in found.named_parameters():
        assert tensor.is_meta == ("layers" in name)
        assert tensor.is_meta or content_of(tensor) == content_of(expected.state_dict()[name])
    assert not reasons()


def test_transformers_reads_only_parts_of_sharded_tensors(llama, transformers, gpu):
    """Tensor parallelism: transformers gives the tensor to an object that takes this rank's part."""
    import safetensors

    class Columns:
        def shard_tensor(self, tensor, tensor_idx=None, device=None, dtype=None):
            return tensor[:, :tensor.get_shape()[1] // 2].to(device=device, dtype=dtype)

    path = sorted(llama.glob("*.safetensors"))[1]
    with safetensors.safe_open(path, "pt") as file:
        name = next(name for name in file.keys() if "gate_proj" in name)
        whole = file.get_tensor(name)
        spawn = transformers.core_model_loading.spawn_materialize
        found = spawn(None, file.get_slice(name), gpu, torch.float32, sharding_op=Columns())()
    expected = whole[:, :32].to(torch.float32)
    assert found.device.type == gpu.type and content_of(found) == content_of(expected) and not reasons()


def test_transformers_without_the_patched_function(transformers, llama, gpu, monkeypatch):
    """The originals are back: the same weights, nothing read by libsluice."""
    original = transformers.core_model_loading.spawn_materialize.__wrapped__
    monkeypatch.setattr(transformers.core_model_loading, "spawn_materialize", original)
    before = read_bytes()
    same_weights(load(transformers, llama, monkeypatch, device_map={"": str(gpu)}), load(transformers, llama, monkeypatch))
    assert read_bytes() == before


def test_transformers_falls_back(transformers, llama, gpu, monkeypatch, caplog):
    from sluice.integrations import _bulk
    expected = load(transformers, llama, monkeypatch)
    count = [0]
    real = _bulk.Model.load

    def fail_sometimes(*arguments):
        count[0] += 1
        if count[0] % 2:
            raise RuntimeError("no luck")
        return real(*arguments)

    monkeypatch.setattr(_bulk.Model, "load", fail_sometimes)
    monkeypatch.setattr(_bulk, "GROUP_BYTES", 50_000)
    same_weights(load(transformers, llama, monkeypatch, device_map={"": str(gpu)}), expected)
    assert len([line for line in caplog.records if "no luck" in line.message]) == 1


def test_merged_experts(transformers, mount, gpu, monkeypatch):
    """transformers makes one tensor of those of all experts."""
    torch.manual_seed(2)
    config = transformers.MixtralConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                        num_key_value_heads=2, vocab_size=100, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(mount / "moe", max_shard_size="60KB")
    expected = load(transformers, mount / "moe", monkeypatch)
    before = read_bytes()
    same_weights(load(transformers, mount / "moe", monkeypatch, device_map={"": str(gpu)}), expected)
    assert read_bytes() - before == file_bytes(mount / "moe")


@pytest.mark.parametrize("shards", ["10GB", "20KB"])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_diffusers(mount, diffusers, gpu, shards, dtype):
    torch.manual_seed(3)
    model = diffusers.UNet2DModel(sample_size=8, block_out_channels=(32, 32), layers_per_block=1, norm_num_groups=8,
                                  down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"))
    model.save_pretrained(mount / "unet", max_shard_size=shards)
    options = {} if dtype is None else {"torch_dtype": dtype}
    before = read_bytes()
    expected = diffusers.UNet2DModel.from_pretrained(mount / "unet", **options)
    assert read_bytes() == before
    found = diffusers.UNet2DModel.from_pretrained(mount / "unet", device_map={"": str(gpu)}, **options)
    same_weights(found, expected)
    assert read_bytes() - before == file_bytes(mount / "unet")
    assert not reasons()


@pytest.mark.parametrize("change", [
    lambda tensor: tensor[-1, -1:].mul_(2), lambda tensor: tensor.data.mul_(2), lambda tensor: tensor.numpy().__imul__(2),
    lambda tensor: tensor.t_(), lambda tensor: setattr(tensor, "data", torch.rand(700, 700)), lambda tensor: None])
def test_diffusers_gets_tensors_that_the_program_has_changed(mount, diffusers, gpu, change):
    import safetensors.torch
    loading = diffusers.models.model_loading_utils
    stored = {f"{name}.weight": torch.rand(700, 700) for name in ("first", "middle", "last")}
    stored["none.weight"] = torch.empty(0, 700)
    safetensors.torch.save_file(stored, mount / "a.safetensors")
    state_dict = safetensors.torch.load_file(mount / "a.safetensors")
    assert torch.equal(state_dict["first.weight"], stored["first.weight"])  # its pages are in memory, the others are not
    change(state_dict["first.weight"])
    expected = {name: tensor.clone() for name, tensor in state_dict.items()}
    before = read_bytes()
    with torch.device("meta"):
        model = torch.nn.ModuleDict({name.partition(".")[0]: torch.nn.Linear(700, len(tensor), bias=False)
                                     for name, tensor in stored.items()})
    loading.load_model_dict_into_meta(model, state_dict, device_map={"": str(gpu)})
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.cpu(), expected[name]), name
    each = stored["first.weight"].nbytes
    if torch.equal(expected["first.weight"], stored["first.weight"]):
        assert read_bytes() - before == 3 * each
    else:
        assert each <= read_bytes() - before <= 2 * each  # one that shares a page with it may not be read, either


@pytest.mark.parametrize("dtype, is_read", [(torch.float8_e4m3fn, False), (torch.float16, True), (None, True)])
def test_diffusers_converts_on_the_cpu_what_a_gpu_may_round_otherwise(mount, diffusers, gpu, dtype, is_read):
    import safetensors.torch
    safetensors.torch.save_file({"weight": torch.rand(30, 30)}, mount / "a.safetensors")
    state_dict, before = safetensors.torch.load_file(mount / "a.safetensors"), read_bytes()
    with torch.device("meta"):
        model = torch.nn.Linear(30, 30, bias=False)
    diffusers.models.model_loading_utils.load_model_dict_into_meta(model, state_dict, device_map={"": str(gpu)}, dtype=dtype)
    assert content_of(model.weight.data) == content_of(state_dict["weight"].to(dtype or torch.float32))
    assert (read_bytes() > before) == is_read


def test_accelerate(llama, transformers, gpu):
    """The package accelerate opens files for the device that a tensor goes to."""
    modeling = pytest.importorskip("accelerate.utils.modeling")
    path = sorted(llama.glob("*.safetensors"))[1]
    if gpu.type != "cuda":
        pytest.skip("the original safe_open, which is opened too, knows no other GPU")
    before = read_bytes()
    found = modeling.load_state_dict(str(path), device_map={"": str(gpu)})
    for name, tensor in modeling.load_state_dict(str(path), device_map={"": "cpu"}).items():
        assert content_of(found[name]) == content_of(tensor)
    assert read_bytes() > before


def test_the_calls_of_comfyui(llama, gpu):
    """comfy.utils.load_torch_file: safe_open with a device as a string, then each key; torch.load for other files."""
    import safetensors
    path = sorted(llama.glob("*.safetensors"))[1]
    device = gpu.type if gpu.type == "cuda" else "cpu"
    with safetensors.safe_open(str(path), framework="pt", device=device) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
        assert file.metadata() == {"format": "pt"}
    torch.save(found, llama / "a.ckpt")
    again = torch.load(llama / "a.ckpt", map_location=torch.device(device), weights_only=True)
    for name, tensor in safetensors.torch.load_file(path).items():
        assert content_of(found[name]) == content_of(again[name]) == content_of(tensor)
