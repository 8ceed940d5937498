{{/* The folders that the values ask for, one a line, in the order in which they are put together. */}}
{{- define "nodeagent.folders" -}}
base
{{ if has .Values.source (list "file" "mig-config") }}components/source-{{ .Values.source }}{{ end }}
{{ if has .Values.driver (list "operator" "host") }}components/driver-from-operator{{ end }}
{{ if eq .Values.driver "host" }}components/driver-from-host{{ end }}
{{ if eq (include "nodeagent.dra" .) "true" }}components/dra{{ end }}
{{ if .Values.dra.nvidiaNames }}components/dra-nvidia-names{{ end }}
{{ if .Values.dra.nvidiaDriver }}components/dra-nvidia-driver{{ end }}
{{ if eq .Values.clients "deletePods" }}components/plugin-pod-deletion{{ end }}
{{ if .Values.evictions }}components/evictions{{ end }}
{{ if eq .Values.mps.launch "child" }}components/mps-in-pod{{ end }}
{{ if or .Values.monitoring.port .Values.monitoring.prometheusOperator }}components/monitoring{{ end }}
{{ if .Values.monitoring.prometheusOperator }}monitoring{{ end }}
{{ if and .Values.monitoring.prometheusOperator .Values.monitoring.serviceMonitor }}monitoring/service-monitor{{ end }}
{{ if eq .Values.source "nos" }}overlays/nos{{ end }}
{{ if .Values.simulated }}overlays/simulated{{ end }}
{{- end -}}

{{/* The settings file that the values ask for. */}}
{{- define "nodeagent.settings" -}}
{{- $settings := dict -}}
{{- if eq .Values.source "nos" -}}
  {{- $_ := set $settings "plan" (dict "source" "nos") -}}
{{- end -}}
{{- $kubernetes := dict -}}
{{- if ne .Values.clients "nothing" -}}
  {{- $_ := set $kubernetes "clients" .Values.clients -}}
{{- end -}}
{{- with .Values.pluginPods -}}
  {{- $_ := set $kubernetes "plugin_pods" . -}}
{{- end -}}
{{- with $kubernetes -}}
  {{- $_ := set $settings "kubernetes" . -}}
{{- end -}}
{{- if eq (include "nodeagent.dra" .) "true" -}}
  {{- $dra := dict "mode" .Values.dra.mode -}}
  {{- range $key, $value := dict "share" .Values.dra.share "share_mig" .Values.dra.shareMig -}}
    {{- if and $value (ne (toString $value) "off") -}}{{- $_ := set $dra $key $value -}}{{- end -}}
  {{- end -}}
  {{- $_ := set $settings "dra" $dra -}}
{{- end -}}
{{- if and (not .Values.simulated) (eq .Values.mps.launch "hostSystemd") -}}
  {{- $_ := set $settings "mps" (dict "launch" "hostSystemd") -}}
{{- end -}}
{{- with mergeOverwrite $settings (deepCopy .Values.settings) -}}
  {{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Whether claims are served: an `off` without quotes is false. */}}
{{- define "nodeagent.dra" -}}
{{- has .Values.dra.mode (list "static" "dynamic") -}}
{{- end -}}

{{/* The ConfigMap of the settings, or nothing where there are none. */}}
{{- define "nodeagent.config" -}}
{{- with include "nodeagent.settings" . -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: nodeagent
  namespace: nodeagent
  labels:
    app.kubernetes.io/name: nodeagent
    app.kubernetes.io/instance: nodeagent
    app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
    app.kubernetes.io/component: settings
    app.kubernetes.io/part-of: nodeagent
    app.kubernetes.io/managed-by: Helm
data:
  settings.yaml: |
    {{- . | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* What the values say of the DaemonSet, as a patch. */}}
{{- define "nodeagent.daemonset" -}}
{{- $image := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- with .Values.image.digest -}}
  {{- $image = printf "%s@%s" $.Values.image.repository . -}}
{{- end -}}
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nodeagent, namespace: nodeagent}
spec:
  template:
    metadata:
      annotations:
        # Settings count from the pod's start on.
        checksum/settings: {{ include "nodeagent.settings" . | sha256sum }}
        {{- with .Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if ne .Values.driver "runtime" }}
      initContainers:
        - name: find-driver
          image: {{ $image | quote }}
          {{- with .Values.image.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
      {{- end }}
      containers:
        - name: nodeagent
          image: {{ $image | quote }}
          {{- with .Values.image.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
          {{- with .Values.simulated }}
          args: [run, --simulate, {{ . | quote }}, --state, /var/lib/nodeagent/node.json]
          {{- end }}
          {{- with .Values.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
{{- end -}}
