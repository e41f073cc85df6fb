"""The paper's table and figures made anew, with our rows beside its own."""
