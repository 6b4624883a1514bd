"""What threads print at the same time stays whole."""

import io
import threading

from perdure.cli.up import LineWriter


def test_lines_of_several_threads_stay_whole() -> None:
    below = io.StringIO()
    stream = LineWriter(below)
    begun, done = threading.Event(), threading.Event()

    def interrupt() -> None:
        begun.wait()
        stream.write("two\n")
        done.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    stream.write("o")
    begun.set()
    done.wait()
    stream.write("ne\nth")
    thread.join()

    assert below.getvalue() == "two\none\n"
    stream.flush()
    assert below.getvalue() == "two\none\nth"


def test_it_is_like_the_stream_below() -> None:
    with open("/dev/null", "w", encoding="utf-8") as below:  # noqa: PTH123
        stream = LineWriter(below)
        assert (stream.encoding, stream.isatty(), stream.fileno()) == (
            "utf-8",
            False,
            below.fileno(),
        )
        assert stream.writable()
        print("a line", file=stream)
