"""The provider's message statuses, and its error bodies."""

from typing import Any

GROUPS = {"PENDING": 1, "UNDELIVERABLE": 2, "DELIVERED": 3, "EXPIRED": 4, "REJECTED": 5}
PENDING = "PENDING_ACCEPTED"
DELIVERED = "DELIVERED_TO_HANDSET"
EXPIRED = "EXPIRED_EXPIRED"
DUPLICATE = "REJECTED_DUPLICATE_MESSAGE_ID"
WRONG_NUMBER = "REJECTED_INVALID_DESTINATION"
NO_CREDIT = "REJECTED_NOT_ENOUGH_CREDITS"
_STATUSES = {
    PENDING: (26, "The message is accepted"),
    DELIVERED: (5, "The message is on the phone"),
    EXPIRED: (15, "It could not be delivered in its time"),
    DUPLICATE: (23, "A message with this id is here already"),
    WRONG_NUMBER: (52, "The destination is no number"),
    NO_CREDIT: (12, "The account has no credit"),
}


def status_body(name: str) -> dict[str, Any]:
    group = name.partition("_")[0]
    number, words = _STATUSES[name]
    return {"groupId": GROUPS[group], "groupName": group, "id": number, "name": name, "description": words}


def report_error(name: str) -> dict[str, Any]:
    """The `error` of a report."""
    if name == DELIVERED or name.startswith("PENDING"):
        return {
            "groupId": 0,
            "groupName": "OK",
            "id": 0,
            "name": "NO_ERROR",
            "description": "No error",
            "permanent": False,
        }
    return {
        "groupId": 1,
        "groupName": "HANDSET_ERRORS",
        "id": 1,
        "name": "EC_UNKNOWN",
        "description": "Unknown",
        "permanent": True,
    }


def error_body(code: int, description: str, violations: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    return {
        "errorCode": f"E{code}",
        "description": description,
        "action": "",
        "violations": [{"property": where, "violation": what} for where, what in violations or []],
        "resources": [],
    }
