"""The one way to say that a row of a dataset is not used."""


class RowRejected(Exception):
    """A row cannot be used; `reason` is a short name for the count, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        message = message.encode("utf-8", "backslashreplace").decode()  # it may quote half a character of the row
        super().__init__(message)
        self.reason, self.message = reason, message
