"""A bounded picture of a process tree, ready for JSON: it travels to another process.

However many processes there are and however deep they are nested, a picture stays small.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from perdure.otp.tree import TreeNode

MOST_NODES: Final = 2_000  # processes in a picture; those left out are counted
DEEPEST: Final = 64

Json: TypeAlias = dict[str, Any]


def picture(roots: Sequence[TreeNode], most: int = MOST_NODES) -> list[Json]:
    """Return at most so many processes, upper levels first, as plain values for JSON.

    A node has how many of its children were left out.
    """
    drawn = [_node(root) for root in roots[:most]]
    left = most - len(drawn)
    level = list(zip(roots, drawn, strict=False))
    for _ in range(DEEPEST):
        following: list[tuple[TreeNode, Json]] = []
        for node, drawn_node in level:
            shown = node.children[:left]
            left -= len(shown)
            below = [(child, _node(child)) for child in shown]
            drawn_node["children"] = [each for _, each in below]
            drawn_node["left_out"] = len(node.children) - len(shown)
            following += below
        level = following
    for node, drawn_node in level:
        drawn_node["left_out"] = len(node.children)
    return drawn


def _node(node: TreeNode) -> Json:
    info = node.info
    return {
        "id": None if node.id is None else str(node.id),
        "pid": None if info is None else str(info.pid),
        "kind": node.kind,
        "label": node.label,
        "state": node.state,
        "restarts": node.restarts,
        "age": None if info is None else info.age,
        "mailbox": None if info is None else info.mailbox,
        "awaits": node.awaits,
        "children": [],
        "left_out": 0,
    }
