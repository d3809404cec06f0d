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


def test_the_page_and_all_its_files_come_from_this_gateway_under_a_strict_policy(http: httpx.Client) -> None:
    page = http.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    waiting, seen = ["/"], set()
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        answer = http.get(address)
        assert answer.status_code == 200, address
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        if address == "/" or (address.endswith(".js") and "/vendor/" not in address):
            found = re.findall(r"""(?:src=|href=|from )["']([^"'$]+)["']""", answer.text)
            waiting += [urljoin(address, one) for one in found if one.rpartition(".")[2] in {"js", "css", "svg"}]
    assert {"/page/app.js", "/page/views/job.js", "/page/vendor/uplot/uPlot.js", "/page/style/base.css"} <= seen


def test_there_is_nothing_beside_the_files_of_the_page(http: httpx.Client) -> None:
    for address in ("/page/", "/page/none.js", "/page/..%2fapp.py", "/page/%2e%2e/app.py"):
        answer = http.get(address)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), address
