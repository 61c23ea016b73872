"""tau2 retail on a shop of our own, of the same form; what its tools do, by hand."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from spade_jax.evals import tau2
from spade_jax.evals.retail import TOOLS, Shop
from spade_jax.evals.suites import USER
from spade_jax.types import UsageError
from tests.evals.courses import drive
from tests.evals.tool_play import call_text, is_golden

HOME = {
    **{"address1": "1 Main St", "address2": "", "city": "Bonn", "state": "NW"},
    **{"country": "DE", "zip": "53111"},
}


def item(name: str, price: float, available: bool = True) -> dict:
    return {"item_id": name, "options": {"n": name}, "available": available, "price": price}


def order(name: str, status: str, paid: str, *items: tuple[str, float]) -> dict:
    return {
        "order_id": name,
        "user_id": "ann_1",
        "address": HOME,
        "items": [
            {"name": "Mug", "product_id": "p1", "item_id": i, "price": price, "options": {"n": i}}
            for i, price in items
        ],
        "status": status,
        "payment_history": [
            {
                "transaction_type": "payment",
                "amount": sum(price for _, price in items),
                "payment_method_id": paid,
            }
        ],
    }


SHOP = {
    "products": {
        "p1": {
            "name": "Mug",
            "product_id": "p1",
            "variants": {
                "m1": item("m1", 10.0),
                "m2": item("m2", 12.5),
                "m3": item("m3", 4.0),
                "m4": item("m4", 1.0, available=False),
            },
        }
    },
    "users": {
        "ann_1": {
            "user_id": "ann_1",
            "name": {"first_name": "Ann", "last_name": "Lee"},
            "address": HOME,
            "email": "ann@example.com",
            "payment_methods": {
                "card": {"source": "credit_card", "id": "card"},
                "gift": {"source": "gift_card", "id": "gift", "balance": 5.0},
            },
            "orders": ["#W1", "#W2", "#W3"],
        }
    },
    "orders": {
        "#W1": order("#W1", "pending", "card", ("m1", 10.0), ("m1", 10.0)),
        "#W2": order("#W2", "delivered", "card", ("m1", 10.0), ("m2", 12.5)),
        "#W3": order("#W3", "pending", "gift", ("m3", 4.0)),
    },
}
TASK = {
    "id": "0",
    "user_scenario": {
        "persona": None,
        "instructions": {
            "domain": "retail",
            "reason_for_call": "Cancel order #W3, which you do not need. How much comes back?",
            "known_info": "You are Ann Lee in 53111.",
        },
    },
    "evaluation_criteria": {
        "actions": [
            {"name": "get_order_details", "arguments": {"order_id": "#W3"}},
            {
                "name": "cancel_pending_order",
                "arguments": {"order_id": "#W3", "reason": "no longer needed"},
            },
        ],
        "communicate_info": ["4"],
        "reward_basis": ["DB", "COMMUNICATE"],
    },
}


@pytest.fixture
def shop() -> Shop:
    return Shop(copy.deepcopy(SHOP))


def refused(shop: Shop, name: str, **arguments: object) -> str:
    before = copy.deepcopy(shop.database)
    answer, done = shop.call(name, arguments)
    assert not done and shop.database == before
    return answer


def changed(shop: Shop, name: str, **arguments: object) -> dict:
    answer, done = shop.call(name, arguments)
    assert done, answer
    return json.loads(answer)


def test_looking_up(shop: Shop) -> None:
    assert shop.call("find_user_id_by_email", {"email": "Ann@Example.com"}) == ("ann_1", True)
    who = {"first_name": "ann", "last_name": "LEE", "zip": "53111"}
    assert shop.call("find_user_id_by_name_zip", who) == ("ann_1", True)
    assert refused(shop, "find_user_id_by_email", email="b") == "Error: User not found"
    assert changed(shop, "get_item_details", item_id="m2")["price"] == 12.5
    assert changed(shop, "list_all_product_types") == {"Mug": "p1"}
    assert refused(shop, "get_order_details", order_id="W1") == "Error: Order not found"


@pytest.mark.parametrize(
    ("expression", "answer"),
    [("2 * (3 + 4) - 1 / 3", "13.67"), ("-5", "-5.0"), ("9 ** 9", None), ("1 / 0", None)]
    + [("__import__('os')", None), ("True", None), ("((((", None)],
)
def test_calculate_is_arithmetic_alone(shop: Shop, expression: str, answer: str | None) -> None:
    failed = ("Error: The expression cannot be calculated", False)
    expected = failed if answer is None else (answer, True)
    assert shop.call("calculate", {"expression": expression}) == expected


def test_cancelling_refunds(shop: Shop) -> None:
    order = changed(shop, "cancel_pending_order", order_id="#W3", reason="ordered by mistake")
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "ordered by mistake")
    assert order["payment_history"][1] == {
        **{"transaction_type": "refund", "amount": 4.0, "payment_method_id": "gift"}
    }
    assert shop.database["users"]["ann_1"]["payment_methods"]["gift"]["balance"] == 9.0
    assert "pending" in refused(shop, "cancel_pending_order", order_id="#W2", reason="x")
    assert "reason" in refused(shop, "cancel_pending_order", order_id="#W1", reason="x")


def test_items_in_place_of_others(shop: Shop) -> None:
    swap = {"order_id": "#W1", "item_ids": ["m1"], "new_item_ids": ["m2"]}
    order = changed(shop, "modify_pending_order_items", **swap, payment_method_id="gift")
    assert [each["item_id"] for each in order["items"]] == ["m2", "m1"]
    assert order["items"][0]["price"] == 12.5 and order["status"] == "pending (item modified)"
    assert order["payment_history"][1]["amount"] == 2.5
    assert shop.database["users"]["ann_1"]["payment_methods"]["gift"]["balance"] == 2.5
    assert "pending" in refused(
        shop, "modify_pending_order_items", **swap, payment_method_id="gift"
    )
    exchange = {"order_id": "#W2", "item_ids": ["m2", "m1"], "new_item_ids": ["m1", "m3"]}
    order = changed(shop, "exchange_delivered_order_items", **exchange, payment_method_id="card")
    assert (order["exchange_items"], order["exchange_new_items"]) == (["m1", "m2"], ["m1", "m3"])
    assert order["exchange_price_difference"] == -8.5
    assert order["items"][0]["item_id"] == "m1" and order["status"] == "exchange requested"


@pytest.mark.parametrize(
    ("items", "new", "method", "why"),
    [
        (["m1", "m1", "m1"], ["m2", "m2", "m2"], "card", "not so often"),
        (["m1"], ["m2", "m2"], "card", "As many"),
        (["m1"], ["x"], "card", "no item of the same product"),
        (["m1"], ["m4"], "card", "not available"),
        (["m1"], ["m1"], "card", "another one"),
        (["m1"], ["m2"], "none", "Payment method not found"),
        (["m1", "m1"], ["m2", "m2"], "gift", ""),
        ("m1", ["m2"], "card", "wrong type"),
    ],
)
def test_changes_that_are_refused(
    shop: Shop, items: list[str], new: list[str], method: str, why: str
) -> None:
    asked = {"order_id": "#W1", "item_ids": items, "new_item_ids": new, "payment_method_id": method}
    if why:
        assert why in refused(shop, "modify_pending_order_items", **asked)
    else:
        changed(shop, "modify_pending_order_items", **asked)  # 5.00 is just enough


def test_returns_payments_and_addresses(shop: Shop) -> None:
    back = {"order_id": "#W2", "item_ids": ["m2"]}
    order = changed(shop, "return_delivered_order_items", **back, payment_method_id="card")
    assert (order["status"], order["return_items"]) == ("return requested", ["m2"])
    pay = {"order_id": "#W1", "payment_method_id": "gift"}
    assert "too low" in refused(shop, "modify_pending_order_payment", **pay)
    order = changed(shop, "modify_pending_order_payment", order_id="#W3", payment_method_id="card")
    kinds = [(p["transaction_type"], p["payment_method_id"]) for p in order["payment_history"]]
    assert kinds == [("payment", "gift"), ("payment", "card"), ("refund", "gift")]
    assert shop.database["users"]["ann_1"]["payment_methods"]["gift"]["balance"] == 9.0
    order = changed(shop, "modify_pending_order_address", order_id="#W1", **{**HOME, "zip": "1"})
    assert order["address"]["zip"] == "1"
    assert changed(shop, "modify_user_address", user_id="ann_1", **HOME)["address"] == HOME
    assert "takes order_id" in refused(shop, "get_order_details", order_id="#W1", more="x")
    assert shop.call("_find", {}) == ("Error: there is no tool _find", False)
    assert all(callable(getattr(shop, name)) for name in TOOLS)


# -- the suite --------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "tau2"
    (folder / "domains" / "retail").mkdir(parents=True)
    (folder / "user_simulator").mkdir()
    (folder / "domains" / "retail" / "db.json").write_text(json.dumps(SHOP))
    (folder / "domains" / "retail" / "tasks.json").write_text(json.dumps([TASK]))
    (folder / "domains" / "retail" / "policy.md").write_text("# Rules\nConfirm first.\n")
    guidelines = folder / "user_simulator" / "simulation_guidelines.md"
    guidelines.write_text("Act a user; say ###STOP### at the end.\n")
    return tmp_path


CANCEL = call_text("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})
BACK = "You get $4 back."


@pytest.mark.parametrize(
    ("replies", "user", "lost"),
    [
        ([CANCEL, BACK], ["Cancel #W3.", "###STOP###"], ""),
        (["Sure?", CANCEL, BACK], ["Cancel #W3.", "Yes.", "Bye ###STOP###"], ""),
        ([CANCEL, "Done."], ["Cancel #W3.", "###STOP###"], "not said: 4"),
        ([BACK], ["Cancel #W3.", "###STOP###"], "not as it should be: ann_1, #W3"),
        ([f"<think>{BACK}</think>", None], ["Cancel #W3.", "?"], "no room in the context"),
        (["{"] * 99, ["Cancel #W3."] * 100, "no end after 200 messages"),
        ([call_text("x", {}) * 10], ["Cancel #W3."], "10 calls that were refused"),
    ],
)
def test_tasks(data: Path, replies: list[str | None], user: list[str], lost: str) -> None:
    with tau2.open_retail(data) as suite:
        [item] = suite.items()
        outcome, log = drive(item.course(0), replies, user)
    assert (outcome.details["lost"], outcome.score) == (lost, float(not lost))
    assert log.texts(USER)[0] == (
        "Act a user; say ###STOP### at the end.\n\n<scenario>\ndomain: retail\nreason for call: "
        "Cancel order #W3, which you do not need. How much comes back?\nknown info: You are Ann "
        "Lee in 53111.\n</scenario>"
    )
    assert log.texts()[1] == "Cancel #W3."


def test_prompt_as_a_model_reads_it(data: Path) -> None:
    with tau2.open_retail(data / "data" / "tau2") as suite:
        _, log = drive(suite.items()[0].course(0), [None], ["Cancel #W3."])
    assert is_golden("tau2_retail", log.says[1])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("domains/retail/db.json", '{"products": {', "db.json is damaged or cut off"),
        ("domains/retail/db.json", '{"products": {}}', "has no users"),
        ("domains/retail/tasks.json", '[{"id": 0}]', "lacks 'evaluation_criteria'"),
        ("user_simulator/simulation_guidelines.md", None, "cannot be read"),
    ],
)
def test_damaged_data(data: Path, file: str, text: str | None, message: str) -> None:
    path = data / "data" / "tau2" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UsageError, match=f"{message}.*tau2-bench"), tau2.open_retail(data):
        pass
    shutil.rmtree(data / "data")
    with pytest.raises(UsageError, match="tau2-bench"), tau2.open_retail(None):
        pass
