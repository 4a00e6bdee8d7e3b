# SPDX-License-Identifier: BSD-2-Clause
"""Runs with the classes of the vLLM package, which need no GPU."""
import importlib.metadata
import pathlib
import tomllib

import pytest

pytest.importorskip("vllm.model_executor.model_loader")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from vllm.config import DeviceConfig, LoadConfig, ModelConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.model_loader import default_loader, get_model_loader  # noqa: E402

from sluice.integrations import vllm_loader  # noqa: E402

vllm_loader.register()


class Model(torch.nn.Module):
    """Stands for a model of vLLM: it takes its weights one by one, in any order."""

    def __init__(self, config):
        super().__init__()
        with torch.no_grad():
            self.inner = transformers.LlamaForCausalLM(config)
        for parameter in self.inner.parameters():
            torch.nn.init.zeros_(parameter)

    def load_weights(self, weights):
        parameters, loaded = dict(self.inner.named_parameters()), set()
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)
            assert name not in loaded
            loaded.add(name)
        return {f"inner.{name}" for name in loaded}


@pytest.fixture(params=[1 << 30, 400_000], ids=["one file", "shards"])
def folder_of_model(request, folder):
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=12, num_attention_heads=2,
                                      num_key_value_heads=2, vocab_size=100, architectures=["LlamaForCausalLM"])
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=request.param)
    assert len(list(folder.glob("*.safetensors"))) == 1 or request.param == 400_000
    return folder


def load(folder, **options):
    config = ModelConfig(model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="float32")
    loader = get_model_loader(LoadConfig(load_format="sluice", **options))
    assert type(loader).__name__ == "SluiceModelLoader"
    model = Model(transformers.AutoConfig.from_pretrained(folder))
    with set_current_vllm_config(VllmConfig(model_config=config, device_config=DeviceConfig("cpu"))):
        loader.load_weights(model, config)
    return model.inner


def is_loaded(model, folder):
    original = dict(transformers.LlamaForCausalLM.from_pretrained(folder).named_parameters())
    return all(torch.equal(tensor, original[name]) for name, tensor in model.named_parameters())


@pytest.mark.parametrize("options", [{}, {"safetensors_load_strategy": "eager"},
                                     {"model_loader_extra_config": {"enable_multithread_load": True, "num_threads": 2}}])
def test_the_weights_are_those_of_the_files(folder_of_model, options, caplog):
    assert is_loaded(load(folder_of_model, **options), folder_of_model)
    assert "own loader" not in caplog.text


@pytest.mark.parametrize("error", [OSError(5, "bad disk"), ValueError("odd header"), RuntimeError("out of memory")])
@pytest.mark.parametrize("after", [0, 1])
def test_what_we_can_not_load_vllm_loads(folder_of_model, monkeypatch, caplog, error, after):
    real = vllm_loader.stream_layers

    def failing(*arguments, **options):
        for count, layer in enumerate(real(*arguments, **options)):
            if count == after:
                raise error
            yield layer

    monkeypatch.setattr(vllm_loader, "stream_layers", failing)
    assert is_loaded(load(folder_of_model), folder_of_model)
    assert "own loader" in caplog.text


def test_weights_of_two_versions_are_not_mixed(folder_of_model, monkeypatch):
    real = vllm_loader.stream_layers

    def failing(path, *arguments):
        for count, layer in enumerate(real(path, *arguments)):
            if count == 1:
                copy = folder_of_model / "copy"
                copy.write_bytes(pathlib.Path(path).read_bytes())
                copy.rename(path)
                raise OSError(5, "bad disk")
            yield layer

    monkeypatch.setattr(vllm_loader, "stream_layers", failing)
    with pytest.raises(RuntimeError, match="was changed while it was loaded"):
        load(folder_of_model)


def test_other_formats_are_untouched(folder_of_model, monkeypatch):
    monkeypatch.setattr(vllm_loader, "stream_layers", None)
    loader = get_model_loader(LoadConfig(load_format="safetensors"))
    assert type(loader) is default_loader.DefaultModelLoader
    config = ModelConfig(model=str(folder_of_model), tokenizer=str(folder_of_model), skip_tokenizer_init=True, dtype="float32")
    assert len(dict(loader.get_all_weights(config, torch.nn.Module()))) == 111


def test_a_folder_without_safetensors_is_an_error(folder_of_model):
    for path in folder_of_model.glob("*.safetensors"):
        path.unlink()
    with pytest.raises((RuntimeError, FileNotFoundError), match="Cannot find any model weights|missing"):
        load(folder_of_model)


def test_experts_of_other_ranks_are_not_read(folder):
    from safetensors.torch import save_file
    names = [f"model.layers.{i}.mlp.experts.{j}.down_proj.weight" for i in range(2) for j in range(4)]
    save_file({name: torch.rand(4) for name in [*names, "model.embed.weight"]}, folder / "model.safetensors")
    loader = get_model_loader(LoadConfig(load_format="sluice"))
    weights = dict(loader._weights([str(folder / "model.safetensors")], False, None, {1, 3}))
    assert sorted(weights) == sorted([name for name in names if ".1." in name[20:] or ".3." in name[20:]] + ["model.embed.weight"])


def test_the_plugin_does_not_end_vllm(monkeypatch, caplog):
    monkeypatch.delattr(default_loader, "safetensors_weights_iterator")
    vllm_loader.register.__wrapped__()
    assert "does not fit this version" in caplog.text


def test_the_entry_point_exists():
    project = pathlib.Path(__file__).parents[3] / "client/python/pyproject.toml"
    points = tomllib.loads(project.read_text())["project"]["entry-points"]["vllm.general_plugins"]
    found = importlib.metadata.EntryPoint("sluice", points["sluice"], "vllm.general_plugins").load()
    assert found is vllm_loader.register
