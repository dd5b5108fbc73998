"""What the tests ask of a figure: the texts that it shows."""


def texts(figure) -> str:
    """Every text that a figure shows, with bars between them."""
    return " | ".join(item.get_text() for item in figure.findobj(lambda artist: hasattr(artist, "get_text")))
