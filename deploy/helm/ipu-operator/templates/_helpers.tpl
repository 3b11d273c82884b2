{{- /* Names, and parts that several templates share. Names fit 63 characters with every suffix used here. */ -}}

{{- define "ipu-operator.fullname" -}}
{{- $name := .Values.fullNameOverride | default (printf "%s-%s" .Release.Name (.Values.nameOverride | default .Chart.Name)) -}}
{{- if gt (len $name) 42 -}}
{{- printf "%s-%s" ($name | trunc 35 | trimSuffix "-") ($name | sha256sum | trunc 6) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.controller" -}}{{ include "ipu-operator.fullname" . }}-controller-manager{{- end -}}
{{- define "ipu-operator.proxy" -}}{{ include "ipu-operator.fullname" . }}-vipu-proxy{{- end -}}
{{- define "ipu-operator.webhook" -}}{{ include "ipu-operator.fullname" . }}-webhook{{- end -}}
{{- define "ipu-operator.uninstall" -}}{{ include "ipu-operator.fullname" . }}-uninstall{{- end -}}

{{- /* The Lease that the leading controller holds, and the Secret with the webhooks' certificate. */ -}}
{{- define "ipu-operator.lease" -}}{{ include "ipu-operator.controller" . }}{{- end -}}
{{- define "ipu-operator.webhookSecret" -}}{{ include "ipu-operator.webhook" . }}-certificate{{- end -}}

{{- /* The Secret with the proxy's certificate, and the ConfigMap with its authority, for the proxy's clients. */ -}}
{{- define "ipu-operator.proxySecret" -}}{{ include "ipu-operator.proxy" . }}-certificate{{- end -}}
{{- define "ipu-operator.proxyCa" -}}{{ include "ipu-operator.proxy" . }}-ca{{- end -}}

{{- define "ipu-operator.controllerAccount" -}}
{{- with .Values.controller.serviceAccount -}}
{{- .name | default (ternary (include "ipu-operator.controller" $) "default" .create) -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.proxyAccount" -}}
{{- with .Values.vipuProxy.serviceAccount -}}
{{- .name | default (ternary (include "ipu-operator.proxy" $) "default" .create) -}}
{{- end -}}
{{- end -}}

{{- /* (root, component): labels that select an object's Pods; must never change. */ -}}
{{- define "ipu-operator.selector" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "ipu-operator.labels" -}}
{{ include "ipu-operator.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- /* (root, name): an image's name in the site's registry. */ -}}
{{- define "ipu-operator.imageName" -}}
{{- with .root.Values.global.imageRegistry -}}
{{- regexReplaceAll "^localhost:5000/" $.name (printf "%s/" (trimSuffix "/" .)) -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end -}}

{{- /* (root, image): a repository and its tag. */ -}}
{{- define "ipu-operator.image" -}}
{{ include "ipu-operator.imageName" (dict "root" .root "name" .image.repository) }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "ipu-operator.controllerImage" -}}
{{ include "ipu-operator.image" (dict "root" . "image" .Values.controller.image) }}
{{- end -}}

{{- /* Nodes that imported the package's images have the default name; another registry has the image by its version. */ -}}
{{- define "ipu-operator.launcherIsPulled" -}}
{{- if and .Values.global.imageRegistry (eq .Values.global.launcherImage "launcher:latest") -}}yes{{- end -}}
{{- end -}}

{{- define "ipu-operator.launcherImage" -}}
{{- $name := .Values.global.launcherImage -}}
{{- if include "ipu-operator.launcherIsPulled" . -}}{{- $name = printf "localhost:5000/launcher:%s" .Chart.AppVersion -}}{{- end -}}
{{- include "ipu-operator.imageName" (dict "root" . "name" $name) -}}
{{- end -}}

{{- define "ipu-operator.launcherPullPolicy" -}}
{{- $policy := .Values.global.launcherImagePullPolicy -}}
{{- if and (include "ipu-operator.launcherIsPulled" .) (eq $policy "Never") -}}IfNotPresent{{- else -}}{{ $policy }}{{- end -}}
{{- end -}}

{{- /* Names of Secrets, with commas between them. */ -}}
{{- define "ipu-operator.pullSecretNames" -}}
{{- $names := list -}}
{{- $given := .Values.global.imagePullSecrets -}}
{{- range (ternary (list $given) $given (kindIs "map" $given)) -}}
{{- with (ternary . (dict "name" .) (kindIs "map" .)) -}}
{{- with .name -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "ipu-operator.imagePullSecrets" -}}
{{- with include "ipu-operator.pullSecretNames" . -}}
imagePullSecrets:
{{- range splitList "," . }}
  - name: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* The controllers as the proxy reads them, with commas; entries that it would refuse are refused here, visibly. */ -}}
{{- define "ipu-operator.vipuControllers" -}}
{{- $given := .Values.global.vipuControllers | default .Values.vipuControllers -}}
{{- $text := ternary $given (join "," $given) (kindIs "string" $given) -}}
{{- $host := "([A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]{2,45}\\])" -}}
{{- $key := "([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?" -}}
{{- $value := "([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?" -}}
{{- $shape := printf "^%s:[0-9]{1,5}(:(%s=%s)?)?$" $host $key $value -}}
{{- $controllers := list -}}
{{- $names := list -}}
{{- range regexSplit "[,\n]" $text -1 -}}
{{- $one := trim . -}}
{{- if $one -}}
{{- $entry := trimPrefix "!" $one | trim -}}
{{- $address := regexFind "^(\\[[^\\]]*\\]|[^:]*):[0-9]+" $entry -}}
{{- $port := regexFind "[0-9]+$" $address | atoi -}}
{{- if or (not (regexMatch $shape $entry)) (lt $port 1) (gt $port 65535) -}}
{{- fail (printf "global.vipuControllers: %q is not host:port:key=value, as in pod1:8090:ipunode=pod1; the label of its nodes may be left out; !host:port is gone for good (on a command line write \\, between two)" $one) -}}
{{- end -}}
{{- $name := printf "%s:%d" (regexReplaceAll ":[0-9]+$" $address "") $port -}}
{{- if has $name $names -}}
{{- fail (printf "global.vipuControllers: %s is listed twice" $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- $controllers = append $controllers $one -}}
{{- end -}}
{{- end -}}
{{- if gt (len $controllers) 64 -}}
{{- fail (printf "global.vipuControllers: there are %d controllers; at most 64" (len $controllers)) -}}
{{- end -}}
{{- join "," $controllers -}}
{{- end -}}

{{- /* A cluster takes one installation: a second one would serve the same jobs, or leave them without webhooks. It is found by
     the paths of its webhooks, also if the operator is another vendor's. If helm reads no cluster, nothing is found. */ -}}
{{- define "ipu-operator.alone" -}}
{{- range $kind := list "MutatingWebhookConfiguration" "ValidatingWebhookConfiguration" -}}
{{- range $found := dig "items" list (lookup "admissionregistration.k8s.io/v1" $kind "" "") -}}
{{- $about := $found.metadata -}}
{{- range $found.webhooks -}}
{{- $service := dig "clientConfig" "service" dict . -}}
{{- if regexMatch "^/(mutate|validate)-graphcore-ai-v1alpha1-ipujob$" (dig "path" "" $service) -}}
{{- $name := dig "annotations" "meta.helm.sh/release-name" (dig "labels" "app.kubernetes.io/instance" "" $about) $about -}}
{{- $namespace := dig "annotations" "meta.helm.sh/release-namespace" $service.namespace $about -}}
{{- if not (and (eq $name $.Release.Name) (eq $namespace $.Release.Namespace)) -}}
{{- $whose := ternary (printf "release %s" $name) "something that helm does not know" (ne $name "") -}}
{{- fail (printf "this cluster has an operator for IPUJobs already, which looks after all namespaces: %s %s belongs to %s in namespace %s. Upgrade that one, or uninstall it first. If it is gone: kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration %s" $kind $about.name $whose $namespace $about.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* (hostNetwork, dnsPolicy): the DNS policy that goes with the network. */ -}}
{{- define "ipu-operator.dnsPolicy" -}}
{{- if and (not .hostNetwork) (eq .dnsPolicy "ClusterFirstWithHostNet") -}}ClusterFirst{{- else -}}{{ .dnsPolicy }}{{- end -}}
{{- end -}}

{{- /* A value, merged over the safe defaults. */ -}}
{{- define "ipu-operator.podSecurity" -}}
{{- $safe := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $safe (deepCopy .)) -}}
{{- end -}}

{{- define "ipu-operator.containerSecurity" -}}
{{- $safe := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $safe (deepCopy .)) -}}
{{- end -}}
