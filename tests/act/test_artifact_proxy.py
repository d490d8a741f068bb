"""The proxy before act's artifact server mends what a client took and what the server refuses, and nothing else."""

import pytest
from artifact_proxy import known, mended

SIGNED = "/UploadArtifact?sig=ab-_%3D&expires=2026-11-25%2014%3A00%3A00.5%20%2B0000%20UTC&artifactName=x&taskID=1"


@pytest.mark.parametrize(
    "sent",
    [
        SIGNED,
        "/UploadArtifact?sig=ab-_&expires=2026-11-25+14%3A00%3A00.5++0000+UTC&artifactName=x&taskID=1",
        "/UploadArtifact?sig=ab-_=&expires=2026-11-25%2014:00:00.5%20+0000%20UTC&artifactName=x&taskID=1",
    ],
)
def test_a_sign_that_a_client_lost_is_put_back(sent):
    padded = sent.replace("ab-_", "abc").replace("abc%3D", "abc").replace("abc=", "abc")
    assert mended(padded) == SIGNED.replace("ab-_%3D", "abc%3D")


def test_another_zone_and_other_parameters_stay():
    zone = "/x?expires=2026-11-25%2014%3A00%3A00%20-0500%20EST&comp=block&blockid=YQ%3D%3D"
    assert mended(zone) == zone
    assert mended("/twirp/ListArtifacts") == "/twirp/ListArtifacts"


def test_only_the_type_of_a_new_artifact_is_left_out():
    assert known(b'{"name": "x", "version": 7, "mime_type": "application/zip"}') == b'{"name": "x", "version": 7}'
