"""The API's own pages: a browser without a network sees them whole."""

import re
from urllib.parse import urljoin

import httpx


def test_the_docs_page_loads_nothing_from_outside(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    addresses = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)["']""", page.text)
    kinds = {address.rpartition(".")[2] for address in addresses}
    assert {"js", "css", "png"} <= kinds
    for address in addresses:
        assert urljoin("http://gateway/docs", address).startswith("http://gateway/"), address
        assert http.get(address).status_code == 200, address
    assert "://" not in page.text  # neither the validator of swagger.io nor a font
    assert '"validatorUrl": null' in page.text


def test_the_docs_page_reads_the_schema_of_this_gateway(http: httpx.Client) -> None:
    (schema,) = re.findall(r"""url:\s*['"]([^'"]+)['"]""", http.get("/docs").text)
    assert "/v1/jobs" in http.get(schema).json()["paths"]
    assert http.get("/redoc").status_code == 404


def test_the_root_leads_to_the_docs(http: httpx.Client) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
