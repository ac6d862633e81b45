# ncpipe with PyTorch for CUDA, ready to run: docker build -t ncpipe . && docker run --gpus all -it ncpipe
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv
WORKDIR /ncpipe
COPY . .
RUN uv sync --no-dev --extra pipeline && (git rev-parse || git init --quiet)
ENV PATH=/ncpipe/.venv/bin:$PATH
CMD ["bash"]
