// A provider whose answers follow from the question; the small one fails on one of them.
module.exports = class Toy {
  constructor(options) {
    this.config = options.config;
  }

  id() {
    return this.config.name;
  }

  async callApi(prompt) {
    const number = parseInt(prompt.match(/(\d+)\+1/)[1]);
    const large = this.config.name === "toy-large";
    if (number === 5 && !large) return { error: "the provider is down" };
    const right = large || number % 3;
    return {
      output: String(right ? number + 1 : number),
      tokenUsage: { total: 12, prompt: 10, completion: 2 },
      cost: this.config.cost,
      logProbs: [-0.1 * number - 0.01, -0.2],
    };
  }
};
