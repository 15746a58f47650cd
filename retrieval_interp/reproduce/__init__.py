"""The paper's claims (`claims`) with this project's numbers (`evidence`), as a `table`."""
