"""Problems lowered for a simulated GPU: the host's choices, and candidates rendered from them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import tune_samples as samples

import inductor_tables
from build_tools.tune.space import candidate
from inductor_tables.errors import SkippedProblemError
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.versions import series_order, torch_series

pytest.importorskip("triton")

B, F8 = "torch.bfloat16", "torch.float8_e4m3fn"
KEYS = {
    "mm": f"(({B}, [16, 4096], [4096, 1]), ({B}, [4096, 1024], [1, 4096]))+mm",
    "addmm": f"(({B}, [512, 768], [0, 1]), ({B}, [512, 768], [768, 1]), "
    f"({B}, [768, 768], [1, 768]))+alpha=1&beta=1+addmm",
    "bmm": f"(({B}, [8, 128, 64], [8192, 64, 1]), ({B}, [8, 64, 128], [8192, 1, 64]))+bmm",
    "baddbmm": f"(({B}, [8, 64, 64], [4096, 64, 1]), ({B}, [8, 64, 64], [4096, 64, 1]), "
    f"({B}, [8, 64, 64], [4096, 1, 64]))+alpha=1&beta=1+baddbmm",
    "int_mm": "((torch.int8, [64, 256], [256, 1]), (torch.int8, [256, 512], [1, 256]))+int_mm",
    "scaled_mm": f"(({F8}, [64, 1024], [1024, 1]), ({F8}, [1024, 512], [1, 1024]), "
    "(torch.float32, [64, 1], [1, 1]), (torch.float32, [1, 512], [1, 1]))+scaled_mm",
    "mm_plus_mm": f"(({B}, [64, 128], [128, 1]), ({B}, [128, 64], [64, 1]), "
    f"({B}, [64, 128], [128, 1]), ({B}, [128, 64], [64, 1]))+mm_plus_mm",
}
SPLIT = f"(({B}, [8, 65536], [65536, 1]), ({B}, [65536, 8], [1, 65536]))+mm"


@pytest.fixture(name="sim", scope="module")
def _sim() -> Iterator[Any]:
    with inductor_tables.simulate(samples.ARCH, keep_sources=True) as sim:
        yield sim


def _lowered(key: str | Problem, **options: Any) -> Any:
    from build_tools.tune.lowering import Lowered, Options

    problem = problem_from_key(key) if isinstance(key, str) else key
    return Lowered(problem, torch.device("cuda:0"), Options(**options))


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize("op_name", list(KEYS))
def test_each_op_is_lowered_under_its_key(op_name: str) -> None:
    """The host's choices are there, and a candidate of its template has the problem's key."""
    lowered = _lowered(KEYS[op_name])
    space = lowered.space
    assert space.aten and set(space.aten) <= set(space.host)
    assert any(config.template_id.startswith("triton::") for config in space.host)
    tiled = next(config for config in space.host if "BLOCK_M" in dict(config.params))
    entry = lowered.entry(tiled)
    assert entry.key == f"{samples.ARCH}+{KEYS[op_name]}"
    assert entry.plain["template_hash"] == tiled.template_hash


@pytest.mark.usefixtures("sim")
def test_rendering_imports_nothing() -> None:
    """A candidate's source is in the file that its choice names, and no module was made of it."""
    from torch._inductor.codecache import PyCodeCache

    lowered = _lowered(KEYS["mm"])
    config = next(lowered.space.everything({"GROUP_M": 8}))
    before = set(PyCodeCache.modules_no_attr)
    request = lowered.render(config).bmreq
    source = Path(request.module_path).read_text(encoding="utf-8")
    assert f"def {request.kernel_name}(" in source
    assert f"BLOCK_N : tl.constexpr = {dict(config.params)['BLOCK_N']}\n" in source
    assert set(PyCodeCache.modules_no_attr) == before


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize("op_name", ["mm", "addmm", "bmm", "scaled_mm"])
def test_neighbours_are_rendered(op_name: str) -> None:
    """Legal candidates that the host does not offer have a source of their own."""
    lowered = _lowered(KEYS[op_name])
    own = [c for c in lowered.space.host if c.template_id in lowered.space.templates]
    new = [m for m in lowered.space.moves(own[0]) if m not in lowered.space.host][:3]
    assert len(new) == 3
    sources = {_source(lowered.render(config)) for config in [own[0], *new]}
    assert len(sources) == 4
    for config in new:
        assert set(config.params) <= set(lowered.entry(config).plain.items())


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize("op_name", [*KEYS, "split"])
def test_kernels_find_their_inputs(op_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of kernel takes the graph's tensors, as they are or as the host views them."""
    from torch._inductor.async_compile import AsyncCompile

    from build_tools.tune.kernels import kernel_of
    from build_tools.tune.reference import empty

    monkeypatch.setattr(AsyncCompile, "triton", lambda *_: SimpleNamespace(result=None))

    lowered = _lowered(KEYS.get(op_name, SPLIT))
    tensors = {name: empty(key, torch.device("cpu")) for name, key in lowered.tensors.items()}
    products = {config.template_id: config for config in lowered.space.host}
    assert len(products) > 1
    for config in [*products.values(), *lowered.space.extended[:1]]:
        kernel = kernel_of(lowered.render(config), lowered)
        found = kernel.arguments(tensors)
        assert len(found) == len(tensors)
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
        assert {tensor.untyped_storage().data_ptr() for tensor in found} == storages
        assert tuple(kernel.output.sizes)[-2:] == (lowered.shape.m, lowered.shape.n)
        assert kernel.returns is (config.template_id == "decompose_k")


def _source(choice: Any) -> str:
    return Path(choice.bmreq.module_path).read_text()


@pytest.mark.parametrize(("k", "even"), [(4096, True), (4100, False)])
def test_what_is_timed_is_what_a_table_gives(sim: Any, k: int, even: bool) -> None:
    """The rendered candidate is the kernel that a compile with the entry in a table takes."""
    lowered = _lowered(samples.problem(16, 1024, k))
    own = [c for c in lowered.space.host if "BLOCK_M" in dict(c.params)]
    config = next(m for m in lowered.space.moves(own[3]) if m not in lowered.space.host)
    entry = lowered.entry(config)
    assert entry.plain["EVEN_K"] is even
    first, second = (sim.empty(*size, dtype=torch.bfloat16) for size in ((16, k), (1024, k)))
    inductor_tables.enable({entry.key: [dict(entry.plain)]})
    try:
        sim.clear()
        sim.compile(lambda a, b: a @ b.T, first, second)
    finally:
        inductor_tables.disable()
    (op,) = sim.ops
    assert not op.benchmarked
    assert _source(lowered.render(config)) in op.sources


@pytest.mark.usefixtures("sim")
def test_tma_templates_are_behind_a_setting() -> None:
    """They are apart from the host's default space, and left out on request."""
    space = _lowered(KEYS["mm"]).space
    assert {config.template_id for config in space.extended} == {"triton::mm_persistent_tma"}
    assert not any("tma" in config.template_id for config in space.host)
    assert _lowered(KEYS["mm"], tma=False).space.extended == ()


@pytest.mark.usefixtures("sim")
def test_products_split_along_k_are_choices() -> None:
    """Where the host splits K its splits are candidates, with nothing to vary."""
    lowered = _lowered(SPLIT)
    splits = [config for config in lowered.space.host if config.template_id == "decompose_k"]
    assert len(splits) > 3 and not lowered.space.templates
    assert "k_split" in lowered.entry(splits[0]).plain
    assert hasattr(lowered.render(splits[0]), "_compile_for_benchmarking")


@pytest.mark.usefixtures("sim")
def test_a_bias_is_one_row() -> None:
    """ATEN's key has the bias as models have it, from torch 2.12 on."""
    lowered = _lowered(KEYS["addmm"])
    key = lowered.entry(lowered.space.aten[-1]).key
    one_row = f"(({B}, [768], [1]),"
    new = series_order(torch_series(torch.__version__)) >= series_order(torch_series("2.12"))
    assert (one_row in key) is new
    assert lowered.tensors["arg0_1"].size == (768,)


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize(
    ("key", "match"),
    [
        (KEYS["mm"].replace("+mm", "+convolution"), "the tuner knows mm"),
        (KEYS["addmm"].replace("alpha=1", "alpha=zuf0"), "a scalar is no number"),
        (KEYS["int_mm"].replace("int8", "int16"), "torch refuses it|cannot be lowered"),
    ],
)
def test_what_cannot_be_tuned_is_skipped(key: str, match: str) -> None:
    """The reason is told."""
    with pytest.raises(SkippedProblemError, match=match):
        _lowered(key)


@pytest.mark.usefixtures("sim")
def test_candidates_that_cannot_run_say_why() -> None:
    """A candidate's limits are those of an entry."""
    lowered = _lowered(KEYS["mm"])
    base = lowered.space.templates["triton::mm"]
    huge = candidate(
        "triton::mm", base.template_hash, {**dict(base.params), "BLOCK_N": 256, "BLOCK_K": 512,
                                           "num_stages": 5},
    )  # fmt: skip
    with pytest.raises(ValueError, match="shared memory"):
        lowered.render(huge)
    with pytest.raises(ValueError, match="no such template"):
        lowered.render(candidate("triton::bmm", None, {}))


@pytest.mark.usefixtures("sim")
def test_lowering_leaves_the_selector_as_it_was() -> None:
    """No preprocessing function of the tuner stays behind."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    before = list(get_algorithm_selector_cache().preprocessing_fns)
    _lowered(KEYS["mm"])
    with pytest.raises(SkippedProblemError):
        _lowered(KEYS["int_mm"].replace("int8", "int16"))
    assert get_algorithm_selector_cache().preprocessing_fns == before


def test_workers_compile_candidates(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels come back from worker processes, and a bad source fails alone."""
    del sim
    from torch._inductor import config as settings

    from build_tools.tune import kernels

    with settings.patch(worker_start_method="fork", compile_threads=2):
        kernels.start_pool(2)
        try:
            lowered = _lowered(KEYS["mm"])
            tiled = [c for c in lowered.space.host if "BLOCK_M" in dict(c.params)][:2]
            made = [kernels.kernel_of(lowered.render(config), lowered) for config in tiled]
            monkeypatch.setattr("builtins.open", _broken_source)
            made.append(kernels.kernel_of(lowered.render(lowered.space.extended[0]), lowered))
            monkeypatch.undo()
            for kernel in made[:2]:
                assert kernel.future.result(timeout=120)[0].compile_results
            with pytest.raises(kernels.FAILURES):
                made[2].load()
        finally:
            kernels.stop_pool()


def test_kernels_without_line_numbers_run_the_same_instructions(
    sim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So what the tuner compiles, to be quicker, is timed for what users compile."""
    from triton.backends import nvidia
    from triton.compiler import CompiledKernel

    from build_tools.render import compile_source

    lowered = _lowered(KEYS["mm"])
    config = next(c for c in lowered.space.host if "BLOCK_M" in dict(c.params))
    source = Path(lowered.render(config).bmreq.module_path).read_text(encoding="utf-8")
    compiled: list[Any] = []
    begin = CompiledKernel.__init__

    def watched(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)
        compiled.append(self)

    monkeypatch.setattr(CompiledKernel, "__init__", watched)
    for value in ("0", "1"):
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", value)
        compile_source(sim, source)
    with_lines, without = compiled
    assert ".loc" in with_lines.asm["ptx"] and ".loc" not in without.asm["ptx"]
    dump = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    instructions = []
    for number, kernel in enumerate(compiled):
        binary = tmp_path / f"{number}.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        listed = subprocess.run([dump, "-sass", binary], capture_output=True, text=True, check=True)
        instructions.append([line for line in listed.stdout.splitlines() if "/*" in line])
    assert len(instructions[0]) > 100
    assert instructions[0] == instructions[1]


def _broken_source(path: Any, *_rest: Any, **_keywords: Any) -> Any:
    import io

    return io.StringIO(Path(path).read_bytes().decode().replace("tl.dot(", "tl.no_such("))


@pytest.mark.usefixtures("sim")
def test_what_does_not_fit_with_its_stages_is_no_candidate() -> None:
    """Torch 2.13 and later would compile it with one stage, which is another candidate."""
    from inductor_tables import host, limits

    lowered = _lowered(KEYS["mm"])
    base = next(iter(lowered._bases.values())).inputs
    product, device = host.product_of(base), host.device_of(base)
    tiled = [dict(config.params) for config in lowered.space.everything({"GROUP_M": 8})]
    assert len(tiled) > 1000
    needed = [limits.shared_memory("triton::mm", params, product, device) for params in tiled]
    assert max(needed) <= device.shared_memory
