"""The paper's claims (`claims`), judged by this project's numbers (`evidence`)."""
