"""Sending an exported folder to the Hugging Face hub."""

from pathlib import Path

from onecard.errors import UserError, first_line


def push(folder: Path, name: str, private: bool = True) -> str:
    """Create the repository if it is not there, send all files in one commit; its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message="Exported by onecard"
        )
    except HFValidationError as error:
        raise UserError(f"{name!r} is no name for a model on the hub: {error}") from None
    except HfHubHTTPError as error:
        raise UserError(
            f"the hub refused {name!r}: {first_line(error)}",
            hint="`hf auth login` signs in; the name is yours as USER/MODEL",
        ) from None
    except Exception as error:  # a network has many ways to fail
        raise UserError(
            f"{name} could not be sent to the hub ({type(error).__name__})",
            hint=f"check the network; {folder} is written and can be sent later",
        ) from None
    return str(repository)
