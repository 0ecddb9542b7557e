# The HTTP service of a judge, for CPUs and GPUs alike:
#   docker build -t empathy-judge .
#   docker run --rm -p 8000:8000 -v $PWD/demo/judge:/judge:ro empathy-judge
# On a GPU: docker run --gpus all ... A token: -e EMPATHY_JUDGE_TOKEN; without one, names other than IP addresses and
# localhost by which it is asked: --allowed-hosts NAME. Options of `empathy-judge serve` follow the image name, after
# /judge --host 0.0.0.0.
# torch and torchaudio are the tested ones from your default package index. For another build of the same versions, such as
# a smaller one without CUDA, pass its index, which must have both: --build-arg PIP_EXTRA_INDEX_URL=...

ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
RUN python -m venv /opt/judge
COPY . .
RUN /opt/judge/bin/pip install --no-cache-dir --constraint constraints.txt ".[serve]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/judge /opt/judge
RUN useradd --uid 10001 --create-home judge
USER 10001
WORKDIR /home/judge
ENV PATH=/opt/judge/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["empathy-judge", "serve"]
CMD ["/judge", "--host", "0.0.0.0"]
