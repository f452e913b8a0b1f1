"""Nodes over the API: their status, and draining them."""

from __future__ import annotations

import socket

from api_site import ALICE, OPERA, Site

HERE = socket.gethostname()


def test_a_node_is_drained_and_undrained_by_operators(site: Site) -> None:
    opera = site.as_user(OPERA)
    assert opera.get("/v1/nodes").json()["nodes"][0]["status"] == "up"
    answer = opera.post(f"/v1/nodes/{HERE}/drain", json={"reason": "new disks"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["moved"] == []
    assert told["node"]["status"] == "drained"
    assert told["node"]["reason"].endswith(": new disks")
    assert {gpu["use"] for gpu in told["node"]["gpus"]} == {"drained"}
    assert site.as_user(ALICE).get("/v1/nodes").json()["nodes"] == [told["node"]]
    figures = opera.get("/metrics").text
    assert 'fairway_nodes{status="drained"} 1.0' in figures
    assert 'fairway_nodes{status="up"} 0.0' in figures
    again = opera.post(f"/v1/nodes/{HERE}/undrain")
    assert (again.status_code, again.json()["status"], again.json()["reason"]) == (200, "up", "")
    entries = opera.get("/v1/audit").json()["entries"]
    assert [(one["path"], one["node"]) for one in entries] == [
        (f"/v1/nodes/{HERE}/drain", HERE),
        (f"/v1/nodes/{HERE}/undrain", HERE),
    ]
    assert entries[0]["reason"] == "new disks"


def test_nobody_else_drains_nodes(site: Site) -> None:
    for path in (f"/v1/nodes/{HERE}/drain", f"/v1/nodes/{HERE}/undrain"):
        answer = site.as_user(ALICE).post(path, json={})
        assert answer.status_code == 403
        assert "only operators can" in answer.json()["error"]
    assert not site.daemon.scheduler.draining.nodes


def test_a_node_that_is_not_there_is_named_with_those_that_are(site: Site) -> None:
    answer = site.as_user(OPERA).post("/v1/nodes/n7/drain", json={})
    assert answer.status_code == 404
    assert answer.json()["error"] == f"there is no node 'n7'; there is {HERE}"


def test_a_reason_is_one_line(site: Site) -> None:
    answer = site.as_user(OPERA).post(f"/v1/nodes/{HERE}/drain", json={"reason": "one\ntwo"})
    assert answer.status_code == 422
