"""A router of LiteLLM's as far as rcjax asks one: models that say what a test wants, in this process."""

from helpers.acting_models import ActingModels
from helpers.chat_server import KEY


class Answered:
    """A completion as LiteLLM has it."""

    def __init__(self, document, **hidden):
        self._document, self._hidden_params = document, hidden

    def model_dump(self):
        return self._document


class Router:
    """Has the models small, middle and large; what each reply cost is in `costs`; `problems` are raised instead."""

    def __init__(self, *policies):
        self.model_list = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in NAMES]
        self.model_list += [{"model_name": f"my {one['model']}", "litellm_params": one} for one in policies]
        self.behave = ActingModels()
        self.costs, self.problems, self.asked = {}, {}, []

    def get_model_list(self, model_name):
        return [one for one in self.model_list if one["model_name"] == model_name]

    async def acompletion(self, model, messages, **told):
        self.asked.append((model, told))
        told["metadata"]["model_group"] = model  # which LiteLLM adds
        if model in self.problems:
            raise self.problems[model]
        body = {"model": model, "messages": messages, **told}
        document = self.behave(body, {"authorization": f"bearer {KEY}"}).body
        return Answered(document, **self.costs.get(model, {}))


NAMES = ("small", "middle", "large")
