"""Values as protobuf messages: each field from the attribute of the same name."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def message_of(kind: type[M], value: object, **given: Any) -> M:
    """Make a message of a value: each field is what is given, else the value's attribute of that name.

    Nested values become messages too. None is absent, but NaN in a double that is not optional; what `value` lacks is
    absent. `Reason` members have the numbers of the protocol's enum.
    """
    return kind(**_fields(kind.DESCRIPTOR, value, given))


def _fields(kind: Any, value: object, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {}
    for field in kind.fields:
        name = field.name
        if name not in given and not hasattr(value, name):
            continue
        found = given[name] if name in given else getattr(value, name)
        if field.message_type is not None and found is not None:
            many = found if field.is_repeated else (found,)
            made = [one if isinstance(one, Message) else _fields(field.message_type, one, {}) for one in many]
            found = made if field.is_repeated else made[0]
        elif found is None and field.type == FieldDescriptor.TYPE_DOUBLE and not field.has_presence:
            found = math.nan
        fields[name] = found
    return fields
