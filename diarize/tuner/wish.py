"""What the user asks to be tuned, checked: layers and precisions by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import OptionError
from ..recipe_parse import LSTM_STACK
from ..registry import LAYERS, candidates
from .run import OWN, Wish, in_order
from .search import STACK_PRECISIONS, STORAGES, Rules

STACK_FP16 = "pyannet.fp16"
"""fp16 alone is ResNet34's."""


def check_names(layers: Sequence[str], precisions: Sequence[str], validated: bool) -> None:
    """Nothing where names and precisions can be right, with some model on some GPU.

    Raises
    ------
    OptionError
        A name is unknown, or a precision has no evidence and is not validated.
    """
    _layers(layers, list(dict.fromkeys(layer.network for layer in LAYERS.values())), list(LAYERS), "unknown")
    _, stack = _precisions(precisions)
    _check_evidence(stack, validated)


def wish_for(
    network: str,
    capability: tuple[int, int],
    layers: Sequence[str] = (),
    precisions: Sequence[str] = (),
    validated: bool = False,
    half_fits: bool = True,
) -> Wish:
    """The wish for a model with the embedding network `network`.

    Parameters
    ----------
    network
        "resnet34" or "campplus".
    capability
        Compute capability of the GPU.
    layers
        Ids of layers or networks; all of the model without any.
    precisions
        Permitted precisions; fp16 for ResNet34 and split for the LSTM stack where none is named for them.
    validated
        Whether whole recordings are validated afterwards.
    half_fits
        Whether ResNet34's weights fit float16.

    Raises
    ------
    OptionError
        A name is unknown, a precision has no evidence and is not validated, or not all layers that must share a
        precision are to be tuned in it.
    """
    networks = ("fbank", "pyannet", network)
    known = [layer.id for layer in LAYERS.values() if layer.network in networks]
    wanted = _layers(layers, networks, known)
    trunk, stack = _precisions(precisions)
    if not trunk:
        trunk = ("fp16",)
        half = any(c.storage == "half" and c.runs_on(capability) for c in candidates("resnet34.layer2.conv1"))
        if not half or not half_fits:
            trunk = ("tf32", "fp32")
    elif network != "resnet34":
        raise OptionError(f"precision {trunk[0]} is ResNet34's, which this model does not have; leave it out")
    elif "fp16" in trunk and not half_fits:
        raise OptionError("precision fp16 is asked for, but weights of this model exceed float16's range; give tf32")
    rules = Rules(OWN, trunk, stack or ("split",), validated)
    _check_evidence(rules.stack, validated)
    if trunk != ("fp16",):
        _check_whole("ResNet34", trunk, [n for n in known if n.startswith("resnet34.")], wanted)
    if stack and stack != ("split",):
        _check_whole("the LSTM stack", stack, LSTM_STACK, wanted)
    return Wish(tuple(layer.id for layer in in_order(wanted)), rules)


def _layers(
    names: Sequence[str], networks: Sequence[str], known: Sequence[str], otherwise: str = "none of this model's"
) -> set[str]:
    if not names:
        return set(known)
    found: set[str] = set()
    for name in names:
        own = [layer for layer in known if name in (layer, LAYERS[layer].network)]
        if not own:
            raise OptionError(f"layer {name!r} is {otherwise}; allowed are {', '.join([*networks, *known])}")
        found.update(own)
    return found


def _precisions(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Precisions of ResNet34 and of the LSTM stack."""
    trunk, stack = [], []
    own = [name for name in STACK_PRECISIONS if name != "fp16"]
    for name in names:
        if name in STORAGES:
            trunk.append(name)
        elif name in own:
            stack.append(name)
        elif name == STACK_FP16:
            stack.append("fp16")
        else:
            raise OptionError(
                f"precision {name!r} is unknown; allowed are {', '.join(STORAGES)} for ResNet34 and "
                f"{', '.join([*own, STACK_FP16])} for the LSTM stack"
            )
    return tuple(dict.fromkeys(trunk)), tuple(dict.fromkeys(stack))


def _check_evidence(stack: Sequence[str], validated: bool) -> None:
    for precision in stack:
        proven = any(c.evidence for c in candidates("pyannet.lstm") if c.precision == precision)
        if not proven and not validated:
            raise OptionError(
                f"no recordings have shown yet that precision {precision} is enough for the LSTM stack; add --validate "
                "AUDIO with recordings of yours"
            )


def _check_whole(what: str, precisions: Sequence[str], group: Collection[str], wanted: Collection[str]) -> None:
    """Layers that hand each other activations in one form are tuned in another one together or not at all."""
    missing = [layer for layer in group if layer not in wanted]
    if missing and set(group) & set(wanted):
        raise OptionError(
            f"{what} in {', '.join(precisions)} needs all of its layers, and {missing[0]} is left out; leave out "
            "--layers or name the network"
        )
