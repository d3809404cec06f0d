"""A line of `conversations.jsonl`: what the prepare stage hands to the next ones, one conversation each."""

from typing import Any, Literal

from pydantic import Field, model_validator

from shared.schemas.spec import Document


class Prepared(Document):
    """A conversation of messages, or a row that came as token ids."""

    id: str = Field(description="Hash of the content; the same conversation has the same id in every dataset.")
    line: int = Field(ge=1, description="Line (JSONL) or row (Parquet, Arrow) in its file, from 1.")
    source: str = Field(description="The dataset's file that it came from.")
    split: Literal["train", "val"]
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    input_ids: list[int] | None = Field(None, description="Token ids, all of which have a hidden state.")
    loss_mask: list[int] | None = Field(None, description="1 where the token is learnt; as long as `input_ids`.")
    last_id: int | None = Field(None, ge=0, description="The token after the last state, where it is known.")
    states: str | None = Field(None, description="Ready-made hidden states, relative to the dataset's folder.")

    @model_validator(mode="after")
    def one_form(self) -> "Prepared":
        if (self.messages is None) == (self.input_ids is None):
            raise ValueError("a prepared conversation has either messages or token ids")
        if self.input_ids is not None and len(self.loss_mask or []) != len(self.input_ids):
            raise ValueError("the loss mask must be as long as the token ids")
        return self
