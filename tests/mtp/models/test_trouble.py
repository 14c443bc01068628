"""What is repeated of other programs' lines when a fetch went wrong."""

from mtp.models.trouble import last_line


def test_lines_of_other_programs_lose_their_addresses():
    line = "ERROR: got https://user:word@index.example/simple (HTTPSConnectionPool(host='a.b'))"
    assert last_line([line, "[notice] new pip", ""]) == "got (HTTPSConnectionPool())"
    crash = ["ERROR: Exception:", "Traceback", "  File", "OSError: [Errno 28] No space left"]
    assert last_line(crash) == "OSError: [Errno 28] No space left"
    assert last_line([]) == "it said nothing"
