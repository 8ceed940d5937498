"""Pure: plans, outcomes and states as the JSON that commands and the API give out."""
