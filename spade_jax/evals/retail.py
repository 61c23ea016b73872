"""The shop of tau2-bench's retail domain: what its tools do to a database, in code of our own.

What each does, and when it refuses, follows github.com/sierra-research/tau2-bench (arXiv
2506.07982), `src/tau2/domains/retail/tools.py`. The database is its db.json: products, users and
orders by their ids.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spade_jax.envs.parsers.syntax import parse_expression

REASONS = ("no longer needed", "ordered by mistake")
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_ORDER = "The order's id, which begins with #, like #W0000000."
_PAYMENT = "The id of one of the user's payment methods, for what is to be paid or refunded."
_ITEMS = "Ids of items in the order, one more than once where several are meant."
_NEW = "Ids of the items in their place, in the same order, each of the same product."
_ADDRESS = {
    "address1": "The street and number.",
    "address2": "A second line, or empty text.",
    "city": "The city.",
    "state": "The state, like CA.",
    "country": "The country, like USA.",
    "zip": "The zip code.",
}
_TEXT, _LIST = {"type": "string"}, {"type": "array", "items": {"type": "string"}}


class Refused(ValueError):
    """Why the shop does not do what is asked."""


class Shop:
    """The shop at work on a database, which it changes. Its public methods are the tools."""

    def __init__(self, database: dict[str, Any]) -> None:
        self.database = database

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a tool answers, as text, and whether it did what was asked."""
        if name not in TOOLS:
            return f"Error: there is no tool {name}", False
        wanted = TOOLS[name][1]
        if set(arguments) != set(wanted):
            return f"Error: {name} takes {', '.join(wanted) or 'nothing'}", False
        for each, schema in wanted.items():
            if not _fits(arguments[each], schema):
                return f"Error: {each} of {name} is of the wrong type", False
        try:
            answer = getattr(self, name)(**arguments)
        except Refused as error:
            return f"Error: {error}", False
        return answer if isinstance(answer, str) else json.dumps(answer), True

    # -- looking up ---------------------------------------------------------------------------

    def _find(self, kind: str, name: str) -> dict[str, Any]:
        found = self.database[f"{kind}s"].get(name)
        if found is None:
            raise Refused(f"{kind.capitalize()} not found")
        return found

    def find_user_id_by_email(self, email: str) -> str:
        return self._who(lambda user: user["email"].lower() == email.lower())

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        wanted = (first_name.lower(), last_name.lower(), zip)
        return self._who(
            lambda user: (
                (
                    user["name"]["first_name"].lower(),
                    user["name"]["last_name"].lower(),
                    user["address"]["zip"],
                )
                == wanted
            )
        )

    def _who(self, fits: Callable[[Mapping[str, Any]], bool]) -> str:
        for name, user in self.database["users"].items():
            if fits(user):
                return name
        raise Refused("User not found")

    def get_user_details(self, user_id: str) -> dict[str, Any]:
        return self._find("user", user_id)

    def get_order_details(self, order_id: str) -> dict[str, Any]:
        return self._find("order", order_id)

    def get_product_details(self, product_id: str) -> dict[str, Any]:
        return self._find("product", product_id)

    def get_item_details(self, item_id: str) -> dict[str, Any]:
        for product in self.database["products"].values():
            if item_id in product["variants"]:
                return product["variants"][item_id]
        raise Refused("Item not found")

    def list_all_product_types(self) -> str:
        products = self.database["products"].values()
        return json.dumps({p["name"]: p["product_id"] for p in products}, sort_keys=True)

    def calculate(self, expression: str) -> str:
        try:
            return str(round(float(_value(parse_expression(expression.strip()))), 2))
        except (SyntaxError, ArithmeticError, RecursionError):
            raise Refused("The expression cannot be calculated") from None

    def transfer_to_human_agents(self, summary: str) -> str:
        return "Transfer successful"

    # -- changing -----------------------------------------------------------------------------

    def _order(self, order_id: str, statuses: Sequence[str], what: str) -> dict[str, Any]:
        order = self._find("order", order_id)
        if order["status"] not in statuses:
            raise Refused(f"Only an order that is {statuses[0]} can be {what}")
        return order

    def _payment(self, user_id: str, payment_method_id: str) -> dict[str, Any]:
        methods = self._find("user", user_id)["payment_methods"]
        if payment_method_id not in methods:
            raise Refused("Payment method not found")
        return methods[payment_method_id]

    def _pay(self, method: dict[str, Any], amount: float, covered: bool = True) -> None:
        """Take an amount from a gift card, or give a negative one back; others settle later."""
        if method["source"] == "gift_card":
            if covered and method["balance"] < amount:
                raise Refused("The balance of the gift card is too low")
            method["balance"] = round(method["balance"] - amount, 2)

    def cancel_pending_order(self, order_id: str, reason: str) -> dict[str, Any]:
        order = self._order(order_id, ("pending",), "cancelled")
        if reason not in REASONS:
            raise Refused(f"The reason must be one of: {', '.join(REASONS)}")
        refunds = []
        for paid in order["payment_history"]:
            method = self._payment(order["user_id"], paid["payment_method_id"])
            self._pay(method, -paid["amount"], covered=False)
            refunds.append({**paid, "transaction_type": "refund"})
        order |= {"status": "cancelled", "cancel_reason": reason}
        order["payment_history"] += refunds
        return order

    def _replaced(
        self, order: Mapping[str, Any], item_ids: Sequence[str], new_item_ids: Sequence[str]
    ) -> tuple[list[dict[str, Any]], float]:
        """The variants in the place of items, and what they cost more."""
        self._in_order(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise Refused("As many new items are needed as old ones")
        variants, more = [], 0.0
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(each for each in order["items"] if each["item_id"] == old)
            variant = self._find("product", item["product_id"])["variants"].get(new)
            if variant is None:
                raise Refused(f"{new} is no item of the same product as {old}")
            if not variant["available"]:
                raise Refused(f"The item {new} is not available")
            variants.append(variant)
            more += variant["price"] - item["price"]
        return variants, more

    def _in_order(self, order: Mapping[str, Any], item_ids: Sequence[str]) -> None:
        there = [item["item_id"] for item in order["items"]]
        for name in item_ids:
            if item_ids.count(name) > there.count(name):
                raise Refused(f"{name} is not so often in the order")

    def exchange_delivered_order_items(
        self,
        order_id: str,
        item_ids: list[str],
        new_item_ids: list[str],
        payment_method_id: str,
    ) -> dict[str, Any]:
        order = self._order(order_id, ("delivered",), "exchanged")
        more = round(self._replaced(order, item_ids, new_item_ids)[1], 2)
        method = self._payment(order["user_id"], payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < more:
            raise Refused("The balance of the gift card is too low")
        return _changed(
            order,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=more,
        )

    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        order = self._order(order_id, ("delivered",), "returned")
        method = self._payment(order["user_id"], payment_method_id)
        original = order["payment_history"][0]["payment_method_id"]
        if method["source"] != "gift_card" and payment_method_id != original:
            raise Refused("A refund goes to a gift card or to what the order was paid with")
        self._in_order(order, item_ids)
        return _changed(
            order,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    def modify_pending_order_items(
        self,
        order_id: str,
        item_ids: list[str],
        new_item_ids: list[str],
        payment_method_id: str,
    ) -> dict[str, Any]:
        order = self._order(order_id, ("pending",), "modified")
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=False)):
            raise Refused("A new item must be another one than the old one")
        variants, more = self._replaced(order, item_ids, new_item_ids)
        self._pay(self._payment(order["user_id"], payment_method_id), more)
        kind = "payment" if more > 0 else "refund"
        paid = {"amount": abs(more), "payment_method_id": payment_method_id}
        order["payment_history"].append({"transaction_type": kind, **paid})
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(each for each in order["items"] if each["item_id"] == old)
            # Upstream gives every item the price and options of the last variant.
            last = {"price": variants[-1]["price"], "options": dict(variants[-1]["options"])}
            item |= {"item_id": new, **last}
        return _changed(order, status="pending (item modified)")

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> dict[str, Any]:
        order = self._order(order_id, ("pending", "pending (item modified)"), "modified")
        method = self._payment(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise Refused("The order must have one payment and no other transaction")
        before, amount = history[0]["payment_method_id"], history[0]["amount"]
        if before == payment_method_id:
            raise Refused("The new payment method must be another one")
        self._pay(method, amount)
        self._pay(self._payment(order["user_id"], before), -amount, covered=False)
        for kind, name in (("payment", payment_method_id), ("refund", before)):
            entry = {"transaction_type": kind, "amount": amount, "payment_method_id": name}
            history.append(entry)
        return order

    def modify_pending_order_address(self, order_id: str, **address: str) -> dict[str, Any]:
        order = self._order(order_id, ("pending", "pending (item modified)"), "modified")
        return _changed(order, address=address)

    def modify_user_address(self, user_id: str, **address: str) -> dict[str, Any]:
        return _changed(self._find("user", user_id), address=address)


def _changed(entry: dict[str, Any], **fields: Any) -> dict[str, Any]:
    entry |= fields
    return entry


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if schema["type"] == "array":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _value(tree: ast.expr) -> float:
    match tree:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(operand))
    raise SyntaxError("not arithmetic")


_PLACE = {name: {**_TEXT, "description": meant} for name, meant in _ADDRESS.items()}
_CONFIRM = "Explain the change and have the user agree to it first."
# By name: what it is for, and its parameters, all of them required.
TOOLS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "calculate": (
        "Calculate with numbers, + - * / and parentheses.",
        {"expression": {**_TEXT, "description": "What to calculate, like 2 * (3 + 4)."}},
    ),
    "cancel_pending_order": (
        f"Cancel an order that is pending; its payments are refunded. {_CONFIRM}",
        {
            "order_id": {**_TEXT, "description": _ORDER},
            "reason": {**_TEXT, "enum": list(REASONS), "description": "Why."},
        },
    ),
    "exchange_delivered_order_items": (
        "Ask for items of a delivered order to be exchanged for others of the same products; once "
        f"an order. {_CONFIRM}",
        {
            "order_id": {**_TEXT, "description": _ORDER},
            "item_ids": {**_LIST, "description": _ITEMS},
            "new_item_ids": {**_LIST, "description": _NEW},
            "payment_method_id": {**_TEXT, "description": _PAYMENT},
        },
    ),
    "find_user_id_by_email": (
        "Find a user's id by email.",
        {"email": {**_TEXT, "description": "The user's email."}},
    ),
    "find_user_id_by_name_zip": (
        "Find a user's id by name and zip code, where the email is not known or not found.",
        {
            "first_name": {**_TEXT, "description": "The first name."},
            "last_name": {**_TEXT, "description": "The last name."},
            "zip": {**_TEXT, "description": "The zip code."},
        },
    ),
    "get_item_details": (
        "Show an item: its options, price, and whether it is available.",
        {"item_id": {**_TEXT, "description": "The item's id, which is not the product's."}},
    ),
    "get_order_details": (
        "Show an order: its status, items and payments.",
        {"order_id": {**_TEXT, "description": _ORDER}},
    ),
    "get_product_details": (
        "Show a product with all its items.",
        {"product_id": {**_TEXT, "description": "The product's id, which is not an item's."}},
    ),
    "get_user_details": (
        "Show a user: address, payment methods and orders.",
        {"user_id": {**_TEXT, "description": "The user's id, like sara_doe_496."}},
    ),
    "list_all_product_types": ("List the names and ids of all products.", {}),
    "modify_pending_order_address": (
        f"Change where a pending order is sent. {_CONFIRM}",
        {"order_id": {**_TEXT, "description": _ORDER}, **_PLACE},
    ),
    "modify_pending_order_items": (
        f"Put other items of the same products into a pending order; once an order. {_CONFIRM}",
        {
            "order_id": {**_TEXT, "description": _ORDER},
            "item_ids": {**_LIST, "description": _ITEMS},
            "new_item_ids": {**_LIST, "description": _NEW},
            "payment_method_id": {**_TEXT, "description": _PAYMENT},
        },
    ),
    "modify_pending_order_payment": (
        f"Change how a pending order is paid. {_CONFIRM}",
        {
            "order_id": {**_TEXT, "description": _ORDER},
            "payment_method_id": {**_TEXT, "description": _PAYMENT},
        },
    ),
    "modify_user_address": (
        f"Change a user's own address. {_CONFIRM}",
        {"user_id": {**_TEXT, "description": "The user's id."}, **_PLACE},
    ),
    "return_delivered_order_items": (
        f"Ask for items of a delivered order to be returned. {_CONFIRM}",
        {
            "order_id": {**_TEXT, "description": _ORDER},
            "item_ids": {**_LIST, "description": _ITEMS},
            "payment_method_id": {**_TEXT, "description": _PAYMENT},
        },
    ),
    "transfer_to_human_agents": (
        "Hand the user over to a human, where one is asked for or the rules and tools do not allow "
        "what is wanted.",
        {"summary": {**_TEXT, "description": "What the user needs."}},
    ),
}
